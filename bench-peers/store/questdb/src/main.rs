//! Rows into QuestDB over ILP, timed until they can be read.
//!
//!     questdb-peer <tcp|http> <table> <file> <batch>
//!
//! One connection, one flush per batch. The file has rows of two `i64`: nanoseconds since 1970, and
//! a value. Prints rows per second, first of what was sent, then until a count sees them all.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use questdb::ingress::{Sender, TimestampNanos};

type Failure = Box<dyn std::error::Error>;

const HTTP: &str = "127.0.0.1:9000";

fn count(table: &str) -> Result<i64, Failure> {
    let mut stream = TcpStream::connect(HTTP)?;
    let path = format!("/exec?query=select%20count()%20from%20{table}");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    // The server keeps the connection open, so reading ends with the number.
    let (mut answer, mut part) = (String::new(), [0; 4_096]);
    loop {
        let read = stream.read(&mut part)?;
        answer.push_str(&String::from_utf8_lossy(&part[..read]));
        let rows = answer.split("\"dataset\":[[").nth(1).and_then(|rest| rest.split_once(']'));
        match rows {
            Some((digits, _)) => return Ok(digits.parse()?),
            // The table does not exist yet.
            None if read == 0 || answer.contains("\"error\"") => return Ok(-1),
            None => {}
        }
    }
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [transport, table, file, batch] = args.as_slice() else {
        return Err("usage: questdb-peer <tcp|http> <table> <file> <batch>".into());
    };
    let (ticks, batch): (Vec<u8>, usize) = (std::fs::read(file)?, batch.parse()?);
    let (ticks, _) = ticks.as_chunks::<16>();
    let rows = ticks.len();
    let mut sender = Sender::from_conf(match transport.as_str() {
        "tcp" => "tcp::addr=127.0.0.1:9009;protocol_version=2;".to_owned(),
        _ => format!("http::addr={HTTP};"),
    })?;
    let mut buffer = sender.new_buffer();
    let started = Instant::now();
    for part in ticks.chunks(batch) {
        for tick in part {
            let (time_ns, value) = tick.split_at(8);
            let at = TimestampNanos::new(i64::from_le_bytes(time_ns.try_into()?));
            let value = i64::from_le_bytes(value.try_into()?);
            buffer.table(table.as_str())?.column_i64("value", value)?.at(at)?;
        }
        sender.flush(&mut buffer)?;
    }
    let sent = started.elapsed();
    while count(table)? < rows as i64 {
        std::thread::sleep(Duration::from_millis(5));
        if started.elapsed() > Duration::from_secs(120) {
            return Err("the rows did not come".into());
        }
    }
    let seen = started.elapsed();
    println!("{} {}", rows as f64 / sent.as_secs_f64(), rows as f64 / seen.as_secs_f64());
    Ok(())
}
