//! Checks the promise of a demo: every receiver has every sent message.

use super::faults::Fault;

/// The result of one receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The name of the receiver.
    pub name: String,
    /// Whether the receiver released exactly the sent messages.
    pub is_equal: bool,
    /// Copies of messages that were sent to the receiver and that it never released.
    pub lost: u64,
}

/// Names the receivers that do not have the sent messages and whose failure no planted fault
/// explains. A receiver that was killed or paused excuses itself alone. A root or proxy that was
/// killed or paused excuses every receiver.
pub fn verdict(receivers: &[Judged], faults: &[Fault]) -> Result<(), String> {
    let hurt = |name: &str| faults.iter().any(|fault| fault.is_excuse() && fault.name == name);
    let is_receiver = |name: &str| receivers.iter().any(|receiver| receiver.name == name);
    if faults.iter().any(|fault| fault.is_excuse() && !is_receiver(&fault.name)) {
        return Ok(());
    }
    let failed = |receiver: &&Judged| !receiver.is_equal || receiver.lost > 0;
    let failed: Vec<String> = receivers
        .iter()
        .filter(failed)
        .filter(|receiver| !hurt(&receiver.name))
        .map(|receiver| match receiver.lost {
            0 => format!("{} (another content)", receiver.name),
            lost => format!("{} ({lost} lost)", receiver.name),
        })
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    let (count, all, who) = (failed.len(), receivers.len(), failed.join(", "));
    Err(format!("{count} of {all} receivers do not have what was sent: {who}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, is_equal: bool, lost: u64) -> Judged {
        Judged { name: name.into(), is_equal, lost }
    }

    #[test]
    fn loss_or_another_content_fails_the_run_unless_a_fault_was_planted_for_it() {
        let all = [judged("receiver-1", true, 0), judged("receiver-2", true, 0)];
        assert_eq!(verdict(&all, &[]), Ok(()));
        let all = [judged("receiver-1", false, 0), judged("receiver-2", false, 7)];
        let said = verdict(&all, &[]).expect_err("nobody has it");
        for words in ["2 of 2 receivers", "receiver-1 (another content)", "receiver-2 (7 lost)"] {
            assert!(said.contains(words), "{said}");
        }
        let planted = |words: &[&str]| {
            let faults: Vec<Fault> = words.iter().map(|w| w.parse().expect("a fault")).collect();
            verdict(&all, &faults)
        };
        let said = planted(&["kill:receiver-1@1"]).expect_err("the other one was not hurt");
        assert!(said.contains("receiver-2") && !said.contains("receiver-1"), "{said}");
        assert_eq!(planted(&["kill:receiver-1@1", "pause:receiver-2@1+1"]), Ok(()));
        assert_eq!(planted(&["kill:proxy-1@1"]), Ok(()));
        assert!(planted(&["slow:proxy-1@1+2ms"]).is_err(), "slow is no excuse");
    }
}
