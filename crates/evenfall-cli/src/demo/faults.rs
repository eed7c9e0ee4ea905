//! Faults that a demo plants: which process, when, what.

use std::str::FromStr;
use std::time::Duration;

/// One planted fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The process.
    pub name: String,
    /// When, counted from the first message.
    pub at: Duration,
    /// Paused for so long; killed when `None`.
    pub pause: Option<Duration>,
}

const USAGE: &str = "must be kill:NAME@SECONDS or pause:NAME@SECONDS+SECONDS";

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number; {USAGE}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{text}: {error}; {USAGE}"))
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').ok_or(USAGE)?;
        let (name, when) = rest.split_once('@').ok_or(USAGE)?;
        let name = name.to_owned();
        match (kind, when.split_once('+')) {
            ("kill", None) => Ok(Self { name, at: seconds(when)?, pause: None }),
            ("pause", Some((at, pause))) => {
                Ok(Self { name, at: seconds(at)?, pause: Some(seconds(pause)?) })
            }
            _ => Err(USAGE.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_mistakes_say_how() {
        let fault: Fault = "pause:recv-2@3+.5".parse().unwrap();
        assert_eq!((fault.at.as_secs(), fault.pause), (3, Some(Duration::from_millis(500))));
        assert_eq!("kill:proxy-1@3".parse::<Fault>().unwrap().pause, None);
        for wrong in ["kill", "kill:a", "kill:a@b", "pause:a@1", "stop:a@1", "kill:a@-1"] {
            assert!(wrong.parse::<Fault>().unwrap_err().contains("kill:NAME@SECONDS"), "{wrong}");
        }
    }
}
