//! Checks the promise of a demo: every receiver has every sent message.

use super::faults::DemoFault;

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
/// explains, and says whether messages were not sent. A receiver that was killed or paused excuses
/// itself alone. A root or proxy that was killed or paused excuses every receiver. While a majority
/// of the roots that vote lives, a fault in a root excuses nothing, and neither does a fault in an
/// author.
pub fn verdict(
    receivers: &[Judged],
    voters: &[&str],
    unsent: u64,
    faults: &[DemoFault],
) -> Result<(), String> {
    let hurt = |name: &str| faults.iter().any(|fault| fault.is_excuse() && fault.name == name);
    let hurt_voters = voters.iter().filter(|name| hurt(name)).count();
    let is_led = hurt_voters * 2 < voters.len();
    let may_fail_alone = |name: &str| {
        // An author that was killed is started again, and goes on where it was.
        let is_author = name == super::processes::AUTHOR;
        let is_voter = is_led && voters.contains(&name);
        is_author || is_voter || receivers.iter().any(|receiver| receiver.name == name)
    };
    if faults.iter().any(|fault| fault.is_excuse() && !may_fail_alone(&fault.name)) {
        return Ok(());
    }
    if is_led && unsent > 0 {
        return Err(format!("{unsent} messages of the feed were not sent"));
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
    Err(format!("{count} of {all} receivers lack messages or have other content: {who}"))
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
        assert_eq!(verdict(&all, &[], 0, &[]), Ok(()));
        let all = [judged("receiver-1", false, 0), judged("receiver-2", false, 7)];
        let said = verdict(&all, &[], 0, &[]).expect_err("nobody has it");
        for words in ["2 of 2 receivers", "receiver-1 (another content)", "receiver-2 (7 lost)"] {
            assert!(said.contains(words), "{said}");
        }
        let planted = |words: &[&str]| {
            let faults: Vec<DemoFault> =
                words.iter().map(|w| w.parse().expect("a fault")).collect();
            verdict(&all, &[], 0, &faults)
        };
        let said = planted(&["kill:receiver-1@1"]).expect_err("the other one was not hurt");
        assert!(said.contains("receiver-2") && !said.contains("receiver-1"), "{said}");
        assert_eq!(planted(&["kill:receiver-1@1", "pause:receiver-2@1+1"]), Ok(()));
        assert_eq!(planted(&["kill:proxy-1@1"]), Ok(()));
        assert!(planted(&["slow:proxy-1@1+2ms"]).is_err(), "slow is no excuse");
    }

    #[test]
    fn a_dead_root_is_no_excuse_while_a_majority_of_the_roots_lives() {
        let voters = ["root", "standby-1", "standby-2"];
        let planted = |lost, unsent, words: &[&str]| {
            let faults: Vec<DemoFault> =
                words.iter().map(|w| w.parse().expect("a fault")).collect();
            let all = [Judged { lost, ..judged("receiver-1", true, 0) }];
            verdict(&all, &voters, unsent, &faults)
        };
        assert_eq!(planted(0, 0, &["kill:root@1"]), Ok(()));
        assert!(planted(0, 7, &["kill:root@1"]).is_err_and(|said| said.contains("7 messages")));
        assert!(planted(1, 0, &["pause:root@1+1"]).is_err());
        assert_eq!(planted(1, 7, &["kill:root@1", "kill:standby-2@2"]), Ok(()));
    }
}
