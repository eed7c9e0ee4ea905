//! A terminal that gives keys one by one and shows whole screens. The program `stty`, which every
//! Linux has, changes the terminal, so that this program needs neither a library nor unsafe code.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use super::screen::TopKey;

/// Size of a terminal that does not tell its size.
const SIZE_DEFAULT: (usize, usize) = (80, 24);

/// Bytes of keys that may wait, as when somebody pastes a text. Further ones wait in the terminal.
const KEYS_MAX: usize = 256;

/// The terminal of this process, which is as before when this value is dropped.
pub struct RawTerminal {
    saved: String,
    bytes: Receiver<u8>,
}

/// Runs `stty` on the terminal of this process.
fn run_stty(arguments: &[&str]) -> io::Result<String> {
    let said = Command::new("stty").args(arguments).stdin(Stdio::inherit()).output()?;
    match said.status.success() {
        true => Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&said.stderr).trim().to_owned())),
    }
}

impl RawTerminal {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// When `stty` fails.
    pub fn enter() -> io::Result<Self> {
        let saved = run_stty(&["-g"])?;
        // Ctrl-C stays a signal.
        run_stty(&["-icanon", "-echo", "min", "1", "time", "0"])?;
        let (sender, bytes) = sync_channel(KEYS_MAX);
        // The thread ends with the process, because a read of a terminal cannot be ended.
        std::thread::spawn(move || {
            for byte in io::stdin().lock().bytes() {
                let Ok(byte) = byte else { return };
                if sender.send(byte).is_err() {
                    return;
                }
            }
        });
        // Dropped, and the terminal is as before, when the screen cannot be written.
        let terminal = Self { saved, bytes };
        let mut out = io::stdout();
        // Another screen, without a cursor.
        out.write_all(b"\x1b[?1049h\x1b[?25l")?;
        out.flush()?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let said = run_stty(&["size"]).unwrap_or_default();
        let mut numbers = said.split_whitespace().filter_map(|word| word.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(rows), Some(columns)) if rows > 0 && columns > 0 => (columns, rows),
            _ => SIZE_DEFAULT,
        }
    }

    /// The next key, if one was pressed.
    pub fn next_key(&mut self) -> Option<TopKey> {
        let key = match self.bytes.try_recv().ok()? {
            b'\x1b' => match (self.bytes.try_recv().ok(), self.bytes.try_recv().ok()) {
                (Some(b'[' | b'O'), Some(b'A')) => TopKey::Up,
                (Some(b'[' | b'O'), Some(b'B')) => TopKey::Down,
                (None, _) => TopKey::Leave,
                _ => TopKey::Other,
            },
            b'\r' | b'\n' => TopKey::Open,
            b'k' => TopKey::Up,
            b'j' => TopKey::Down,
            b's' => TopKey::Sort,
            b'q' => TopKey::Quit,
            _ => TopKey::Other,
        };
        Some(key)
    }

    /// Shows these lines and nothing else.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            text.push_str(line);
            // A line feed behind the last line would scroll.
            text.push_str(if at + 1 < lines.len() { "\x1b[K\r\n" } else { "\x1b[K\x1b[J" });
        }
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let mut out = io::stdout();
        drop(out.write_all(b"\x1b[?25h\x1b[?1049l"));
        drop(out.flush());
        drop(run_stty(&[&self.saved]));
    }
}
