//! Faults that a demo plants: the process, the time and the kind of each fault.

use std::str::FromStr;
use std::time::Duration;

/// One planted fault.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoFault {
    /// The name of the process.
    pub name: String,
    /// Time of the fault, counted from the first message.
    pub at: Duration,
    /// What happens to the process.
    pub harm: Harm,
}

/// A harm to a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Harm {
    /// The process dies.
    Kill,
    /// The process is paused for this long.
    Pause(Duration),
    /// Every datagram to and from the process takes this much longer from the fault to the end.
    Slow(Duration),
    /// The kernel's programs of the process are attached anew.
    Reload,
    /// The clock of the process's host steps by this many nanoseconds, ahead or back.
    Step(i64),
}

impl DemoFault {
    /// Whether the demo still succeeds when a process with this fault has failed.
    pub fn is_excuse(&self) -> bool {
        !matches!(self.harm, Harm::Slow(_) | Harm::Step(_) | Harm::Reload)
    }
}

/// Latest time of a fault, and longest pause. No demo lasts a day, and the clock of processes can
/// add a day to any time.
const DAY: Duration = Duration::from_secs(24 * 3_600);

const USAGE: &str = "must be kill:NAME@SECONDS, reload:NAME@SECONDS, pause:NAME@SECONDS+SECONDS, \
                     slow:NAME@SECONDS+DURATION, or step:NAME@SECONDS+DURATION or -DURATION";

/// Reads `SECONDS+DURATION` or `SECONDS-DURATION`. Gives the time of the step, and by how many
/// nanoseconds the clock steps ahead.
fn step(when: &str) -> Result<(Duration, i64), String> {
    let (at, ahead, by) = match (when.split_once('+'), when.split_once('-')) {
        (Some((at, by)), _) => (at, true, by),
        (_, Some((at, by))) => (at, false, by),
        _ => return Err(USAGE.to_owned()),
    };
    let wrong = |why: &dyn std::fmt::Display| format!("{by}: {why}; {USAGE}");
    let duration = humantime::parse_duration(by).map_err(|error| wrong(&error))?;
    let ns = i64::try_from(duration.as_nanos()).map_err(|error| wrong(&error))?;
    Ok((seconds(at)?, if ahead { ns } else { -ns }))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number; {USAGE}"))?;
    let time = Duration::try_from_secs_f64(seconds);
    let time = time.map_err(|error| format!("{text}: {error}; {USAGE}"))?;
    match time <= DAY {
        true => Ok(time),
        false => Err(format!("{text}: no demo lasts {} seconds; {USAGE}", DAY.as_secs())),
    }
}

impl FromStr for DemoFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').ok_or(USAGE)?;
        let (name, when) = rest.split_once('@').ok_or(USAGE)?;
        let name = name.to_owned();
        match (kind, when.split_once('+')) {
            ("step", _) => {
                let (at, by_ns) = step(when)?;
                Ok(Self { name, at, harm: Harm::Step(by_ns) })
            }
            ("kill", None) => Ok(Self { name, at: seconds(when)?, harm: Harm::Kill }),
            ("reload", None) => Ok(Self { name, at: seconds(when)?, harm: Harm::Reload }),
            ("pause", Some((at, pause))) => {
                Ok(Self { name, at: seconds(at)?, harm: Harm::Pause(seconds(pause)?) })
            }
            ("slow", Some((at, by))) => {
                let by =
                    humantime::parse_duration(by).map_err(|e| format!("{by}: {e}; {USAGE}"))?;
                Ok(Self { name, at: seconds(at)?, harm: Harm::Slow(by) })
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
        let fault: DemoFault = "pause:receiver-2@3+.5".parse().unwrap();
        let half = Harm::Pause(Duration::from_millis(500));
        assert_eq!((fault.at.as_secs(), fault.harm), (3, half));
        assert_eq!("kill:proxy-1@3".parse::<DemoFault>().unwrap().harm, Harm::Kill);
        assert_eq!("reload:proxy-1@3".parse::<DemoFault>().unwrap().harm, Harm::Reload);
        let slow: DemoFault = "slow:proxy-1@3+2ms".parse().unwrap();
        assert_eq!(slow.harm, Harm::Slow(Duration::from_millis(2)));
        assert!(!slow.is_excuse() && fault.is_excuse());
        let step = |text: &str| text.parse::<DemoFault>().map(|fault| fault.harm);
        assert_eq!(step("step:root@1.5+10s"), Ok(Harm::Step(10_000_000_000)));
        assert_eq!(step("step:root@2-1h"), Ok(Harm::Step(-3_600_000_000_000)));
        assert!(step("step:root@2+30years").is_ok() && step("step:root@2").is_err());
        for wrong in
            ["slow:a@1+2", "kill", "kill:a", "kill:a@b", "pause:a@1", "stop:a@1", "kill:a@-1"]
        {
            assert!(
                wrong.parse::<DemoFault>().unwrap_err().contains("kill:NAME@SECONDS"),
                "{wrong}"
            );
        }
        // The clock of processes cannot be set so far ahead.
        for wrong in ["kill:a@1e19", "pause:a@1+1e19", "slow:a@86401+2ms"] {
            assert!(wrong.parse::<DemoFault>().unwrap_err().contains("86400 seconds"), "{wrong}");
        }
    }
}
