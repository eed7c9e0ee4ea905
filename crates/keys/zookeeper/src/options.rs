//! Options that ZooKeeper's servers read from their file `zoo.cfg`, under ZooKeeper's names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::time::Duration;

use evenfall_keys_machine::jute::FRAME_BYTES_MAX;

use crate::KeysError;
use crate::words::{FourLetterWord, WORDS};

/// The names of the options, each with its allowed values.
const NAMES: [(&str, &str); 10] = [
    ("tickTime", "milliseconds, from 1 to 60000"),
    ("minSessionTimeout", "milliseconds, from 100 to 600000"),
    ("maxSessionTimeout", "milliseconds, from 100 to 600000"),
    ("maxClientCnxns", "connections of one address; 0 for any number"),
    ("maxCnxns", "connections; 0 for any number"),
    ("jute.maxbuffer", "bytes of a message, from 1024 to 67108864"),
    ("superDigest", "NAME:BASE64(SHA1(NAME:PASSWORD))"),
    ("superDigestFile", "a file of one line NAME:BASE64(SHA1(NAME:PASSWORD))"),
    ("znode.container.checkIntervalMs", "milliseconds, from 100 to 86400000"),
    ("4lw.commands.whitelist", "words of four letters, such as ruok,mntr; * for all words"),
];
/// Most bytes that are read of the file of a digest, which takes some 50 bytes beside the name.
const DIGEST_FILE_BYTES_MAX: u64 = 4 << 10;
/// The words that are answered by default: none of them lists clients, sessions or watches, or
/// resets what is counted.
const OPEN: [&FourLetterWord; 6] = [b"conf", b"envi", b"isro", b"mntr", b"ruok", b"srvr"];

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `tickTime`, in milliseconds.
    pub tick_ms: u32,
    /// `minSessionTimeout`, in milliseconds: two ticks by default.
    pub session_timeout_ms_min: Option<u32>,
    /// `maxSessionTimeout`, in milliseconds: twenty ticks by default.
    pub session_timeout_ms_max: Option<u32>,
    /// `maxClientCnxns`: connections of one address, 0 for any number.
    pub client_connections_max: usize,
    /// `maxCnxns`: connections, 0 for any number.
    pub connections_max: usize,
    /// `jute.maxbuffer`: most bytes of a client's message.
    pub message_bytes_max: usize,
    /// `superDigest`: the digest of the user who may do everything.
    pub super_digest: Option<String>,
    /// `znode.container.checkIntervalMs`: time between two looks for containers and timed nodes
    /// that are over, in milliseconds.
    pub reap_every_ms: u32,
    /// `4lw.commands.whitelist`: the words of four letters that are answered.
    pub words: BTreeSet<FourLetterWord>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tick_ms: 2_000,
            session_timeout_ms_min: None,
            session_timeout_ms_max: None,
            // ZooKeeper allows 60. A replica on loopback has all its clients at one address.
            client_connections_max: 0,
            // Each connection takes a file descriptor, and a process may have some thousands of
            // them at least.
            connections_max: 20_000,
            message_bytes_max: FRAME_BYTES_MAX,
            super_digest: None,
            reap_every_ms: 60_000,
            words: OPEN.into_iter().copied().collect(),
        }
    }
}

impl Options {
    /// Sets an option by `NAME=VALUE`.
    ///
    /// # Errors
    /// [`KeysError::Option`] names the option, or all options when the name is unknown.
    pub fn set(&mut self, option: &str) -> Result<(), KeysError> {
        const UNKNOWN: &str = "options are tickTime, minSessionTimeout, maxSessionTimeout, \
                               maxClientCnxns, maxCnxns, jute.maxbuffer, superDigest, \
                               superDigestFile, \
                               znode.container.checkIntervalMs and 4lw.commands.whitelist, \
                               each with =VALUE";
        let wrong = |may_be| KeysError::Option(option.to_owned(), may_be);
        let (name, value) = option.split_once('=').ok_or_else(|| wrong(UNKNOWN))?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let (_, may_be) = known.ok_or_else(|| wrong(UNKNOWN))?;
        let within = |least: u32, most: u32| {
            let number = value.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| wrong(may_be))
        };
        match name {
            "tickTime" => self.tick_ms = within(1, 60_000)?,
            "minSessionTimeout" => self.session_timeout_ms_min = Some(within(100, 600_000)?),
            "maxSessionTimeout" => self.session_timeout_ms_max = Some(within(100, 600_000)?),
            "maxClientCnxns" => self.client_connections_max = within(0, u32::MAX)? as usize,
            "maxCnxns" => self.connections_max = within(0, u32::MAX)? as usize,
            "jute.maxbuffer" => self.message_bytes_max = within(1_024, 64 << 20)? as usize,
            "superDigest" => {
                self.super_digest = Some(digest(value).ok_or_else(|| wrong(may_be))?);
            }
            "superDigestFile" => {
                let text = read_short(value)
                    .map_err(|error| KeysError::Io(format!("read {value}"), error))?;
                self.super_digest = Some(digest(text.trim()).ok_or_else(|| wrong(may_be))?);
            }
            "4lw.commands.whitelist" => {
                self.words = words(value).ok_or_else(|| wrong(may_be))?;
            }
            _ => self.reap_every_ms = within(100, 86_400_000)?,
        }
        Ok(())
    }

    /// Shortest and longest timeout of a session, in milliseconds.
    pub fn timeouts_ms(&self) -> (u32, u32) {
        let least = self.session_timeout_ms_min.unwrap_or(2 * self.tick_ms);
        let most = self.session_timeout_ms_max.unwrap_or(20 * self.tick_ms);
        (least, most.max(least))
    }

    /// The timeout that a session gets when its client asks for a timeout of `asked_ms`
    /// milliseconds. The answer lies between the shortest and the longest timeout.
    pub fn timeout_ms(&self, asked_ms: i32) -> u32 {
        let (least, most) = self.timeouts_ms();
        u32::try_from(asked_ms).unwrap_or(0).clamp(least, most)
    }

    /// Time between two looks for containers without children and for timed keys whose time is
    /// over.
    pub fn reap_every(&self) -> Duration {
        Duration::from_millis(self.reap_every_ms.into())
    }
}

/// The text of a short file. A device or a pipe, which may have no end, is no file.
fn read_short(path: &str) -> io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no file"));
    }
    let mut text = String::new();
    File::open(path)?.take(DIGEST_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The digest of a user, if the text is one.
fn digest(text: &str) -> Option<String> {
    let is_digest = text.split_once(':').is_some_and(|(name, _)| !name.is_empty());
    is_digest.then(|| text.to_owned())
}

/// The words of a list with commas. `None` when one of them is no word.
fn words(list: &str) -> Option<BTreeSet<FourLetterWord>> {
    if list.trim() == "*" {
        return Some(WORDS.into_iter().copied().collect());
    }
    let word = |text: &str| WORDS.into_iter().copied().find(|word| word == text.trim().as_bytes());
    list.split(',').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_zookeepers_names_and_timeouts_follow_the_tick() {
        let mut options = Options::default();
        assert_eq!((options.timeout_ms(1), options.timeout_ms(i32::MAX)), (4_000, 40_000));
        options.set("tickTime=200").expect("a number");
        assert_eq!((options.timeout_ms(-1), options.timeout_ms(i32::MAX)), (400, 4_000));
        options.set("minSessionTimeout=5000").expect("a number");
        assert_eq!(options.timeouts_ms(), (5_000, 5_000));
        for wrong in ["tickTime", "tickTime=x", "tickTime=0", "syncLimit=5", "superDigest=:x"] {
            assert!(options.set(wrong).is_err(), "{wrong}");
        }
        options.set("jute.maxbuffer=4194304").expect("a number");
        assert_eq!(options.message_bytes_max, 4 << 20);
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("digest");
        std::fs::write(&file, "ann:D/InIHSb7yEEbrWz8b9l71RjZJU=\n").expect("written");
        options.set(&format!("superDigestFile={}", file.display())).expect("a digest");
        assert_eq!(options.super_digest.as_deref(), Some("ann:D/InIHSb7yEEbrWz8b9l71RjZJU="));
        for wrong in ["superDigestFile=/dev/zero", "superDigestFile=/nothing/here"] {
            assert!(options.set(wrong).is_err(), "{wrong}");
        }
        for wrong in ["4lw.commands.whitelist=", "4lw.commands.whitelist=ruok,kill"] {
            assert!(options.set(wrong).is_err(), "{wrong}");
        }
        options.set("4lw.commands.whitelist=ruok, wchp").expect("two words");
        assert_eq!(options.words, [*b"ruok", *b"wchp"].into());
        options.set("4lw.commands.whitelist=*").expect("all words");
        assert_eq!(options.words.len(), WORDS.len());
    }
}
