//! A client of PostgreSQL's protocol that can also misbehave.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

/// A message of the server: its type and its body.
pub(crate) type ServerMessage = (u8, Vec<u8>);

/// Rows as text.
pub(crate) type TextRows = Vec<Vec<Option<String>>>;

/// A connection.
pub(crate) struct PgClient {
    pub(crate) stream: TcpStream,
    /// The number and the secret by which statements are cancelled.
    pub(crate) key: Vec<u8>,
}

impl PgClient {
    /// Connects to a database, or says why the server refuses.
    pub(crate) fn connect(address: &str, database: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let mut client = Self { stream, key: Vec::new() };
        let mut body = 196_608u32.to_be_bytes().to_vec();
        body.extend(format!("user\0test\0database\0{database}\0\0").bytes());
        let mut packet = (body.len() as u32 + 4).to_be_bytes().to_vec();
        packet.extend(body);
        client.stream.write_all(&packet).map_err(|error| error.to_string())?;
        loop {
            match client.read_message().map_err(|error| error.to_string())? {
                (b'Z', _) => return Ok(client),
                (b'E', body) => return Err(error_words(&body)),
                (b'K', body) => client.key = body,
                _ => {}
            }
        }
    }

    pub(crate) fn send(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        let mut message = vec![kind];
        message.extend((body.len() as u32 + 4).to_be_bytes());
        message.extend(body);
        self.stream.write_all(&message)
    }

    pub(crate) fn read_message(&mut self) -> io::Result<ServerMessage> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }

    /// The rows of a statement as text, or its error.
    pub(crate) fn query(&mut self, sql: &str) -> Result<TextRows, String> {
        self.send(b'Q', &[sql.as_bytes(), b"\0"].concat()).map_err(|error| error.to_string())?;
        self.rows()
    }

    /// The same by the messages of prepared statements, with parameters as text.
    pub(crate) fn query_prepared(
        &mut self,
        sql: &str,
        parameters: &[&str],
    ) -> Result<TextRows, String> {
        self.send(b'P', &[b"\0", sql.as_bytes(), b"\0\0\0"].concat()).unwrap();
        let mut bind = b"\0\0\0\0".to_vec();
        bind.extend((parameters.len() as u16).to_be_bytes());
        for parameter in parameters {
            bind.extend((parameter.len() as u32).to_be_bytes());
            bind.extend(parameter.bytes());
        }
        bind.extend([0, 0]);
        self.send(b'B', &bind).unwrap();
        self.send(b'D', b"P\0").unwrap();
        self.send(b'E', b"\0\0\0\0\0").unwrap();
        self.send(b'S', b"").unwrap();
        self.rows()
    }

    /// Rows until the server is ready again.
    pub(crate) fn rows(&mut self) -> Result<TextRows, String> {
        let (mut rows, mut failure) = (Vec::new(), None);
        loop {
            match self.read_message().map_err(|error| error.to_string())? {
                (b'Z', _) => return failure.map_or(Ok(rows), Err),
                (b'E', body) => failure = Some(error_words(&body)),
                (b'D', body) => rows.push(text_row(&body)),
                _ => {}
            }
        }
    }
}

/// The code and the sentence of an error, and the place where it has one.
pub(crate) fn error_words(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0).filter_map(|field| {
        let (kind, text) = field.split_first()?;
        b"CMP".contains(kind).then(|| String::from_utf8_lossy(text).into_owned())
    });
    fields.collect::<Vec<_>>().join(" ")
}

fn text_row(body: &[u8]) -> Vec<Option<String>> {
    let mut rest = &body[2..];
    let mut row = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_at(4);
        let length = i32::from_be_bytes(length.try_into().unwrap());
        let (value, after) = after.split_at(length.max(0) as usize);
        row.push((length >= 0).then(|| String::from_utf8(value.to_vec()).unwrap()));
        rest = after;
    }
    row
}
