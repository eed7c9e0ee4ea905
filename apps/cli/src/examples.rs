//! Examples under the help of every command.
//!
//! They stand in one table, so that a test reads them: each command has one, and the program takes
//! every example.

use clap::Command;

/// Commands, as words behind `evenfall`, and their examples, a line each.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &str)] = &[
    ("demo", "evenfall demo --receivers 20 --messages 10000
evenfall demo --compare --receivers 5 --fit 2s
evenfall demo --trading --compare --receivers 4 --messages 3000"),
    ("init", "evenfall init --proxies 2 --receivers 4 --feed day.itch50
evenfall init --hosts 10.0.0.4,10.0.0.5,10.0.0.6,10.0.0.7 --proxies 1 --receivers 2"),
    ("key new", "evenfall key new /etc/evenfall/evenfall.key"),
    ("run", "evenfall run root --config evenfall.toml
evenfall run receiver --name receiver-1 --set io.spin=0s"),
    ("report", "evenfall report run --csv messages.csv"),
    ("stat", "evenfall stat --config evenfall.toml --watch
evenfall stat --healthy --http 127.0.0.1:9180"),
    ("watch", "evenfall watch --config evenfall.toml
evenfall watch --root 127.0.0.1:9180"),
    ("top", "evenfall top --root 127.0.0.1:9180"),
    ("host check", "evenfall host check
evenfall host check evenfall.toml --interface eth0 --json"),
    ("plan deploy", "evenfall plan deploy plans/docker.toml --out pool --subnet 10.213.77.0/24"),
    ("plan live", "evenfall plan live --config agents.toml --depth 2 --fanout 2 --apply feed.toml
evenfall plan live --config agents.toml --depth auto --receivers 20
evenfall plan live --config agents.toml --rebuild proxy-2 --avoid proxy-2 --apply feed.toml"),
    ("plan lab", "evenfall plan lab --hosts 10 --slow 3,7"),
    ("plan tree", "evenfall plan tree --owd delays.csv --depth 1 --fanout 3"),
    ("plan run", "evenfall plan run plans/simulated.toml"),
    ("plan fetch", "evenfall plan fetch runs --config pool/agents.toml
evenfall plan fetch runs --http 10.0.0.4:9180"),
    ("plan report", "evenfall plan report simulated"),
    ("clock report", "evenfall clock report --config evenfall.toml"),
    ("clock watch", "evenfall clock watch --http 10.0.0.2:9180 --every 2s"),
    ("store serve", "evenfall store serve ticks --listen 127.0.0.1:7410
evenfall store serve ticks --listen 0.0.0.0:7410 --users users.toml"),
    ("store ls", "evenfall store ls ticks
evenfall store ls tcp://127.0.0.1:7410 --json"),
    ("store create", "evenfall store create ticks trades --schema trades.json --window 1ms"),
    ("store append", "evenfall store append ticks day --feed nasdaq_20261120.itch50
evenfall store append ticks trades --csv trades.csv"),
    ("store read", "evenfall store read ticks day --from 09:30 --to 09:31
evenfall store read ticks aapl --out aapl.csv"),
    ("store tail", "evenfall store tail ticks -n 20
evenfall store tail tcp://127.0.0.1:7410 feed --follow"),
    ("store bars", "evenfall store bars ticks trades --every 1m
evenfall store bars ticks trades --every 1s --fields price --json"),
    ("store export", "evenfall store export ticks day --out day.parquet"),
    ("store retain", "evenfall store retain ticks day --age 30d"),
    ("store delete", "evenfall store delete ticks day"),
    ("store compact", "evenfall store compact ticks"),
    ("store derive", "evenfall store derive ticks day"),
    ("store readers", "evenfall store readers etcd://127.0.0.1:2379/ticks day --node 2"),
    (
        "store user new",
        "evenfall store user new feeder --users users.toml --out feeder.key --append trades",
    ),
    ("store user ls", "evenfall store user ls --users users.toml"),
    ("store user remove", "evenfall store user remove feeder --users users.toml"),
    (
        "store verify",
        "evenfall store verify ticks --feed nasdaq_20261120.itch50
evenfall store verify ticks --signer signing.key.pub",
    ),
    ("sort", "evenfall sort --records 200000 --ranks 4
evenfall sort --in records.bin --out sorted --ranks 4 --verify
evenfall sort --members ranks.txt --rank 2 --key-file evenfall.key --in share.bin --out sorted"),
    ("burst", "evenfall burst q2 --local 4 --records 20000 --json
evenfall burst reprice --local 8 --last 5s --json
evenfall burst nbbo --workers workers.txt --own 10.0.0.9:0 --key-file evenfall.key"),
    ("kv put", "evenfall kv put /symbols/AAPL 13"),
    ("kv get", "evenfall kv get /symbols/AAPL"),
    ("kv cas", "evenfall kv cas /symbols/AAPL 0 14"),
    ("kv delete", "evenfall kv delete /symbols/AAPL"),
    ("kv watch", "evenfall kv watch /symbols/AAPL"),
    ("kv retire", "evenfall kv retire 2"),
    ("kv limit", "evenfall kv limit 512"),
    ("kv status", "evenfall kv status --json"),
    ("files ls", "evenfall files ls /days"),
    ("files stat", "evenfall files stat /days/monday.itch"),
    ("files mkdir", "evenfall files mkdir /days"),
    ("files put", "evenfall files put monday.itch /days/monday.itch"),
    ("files get", "evenfall files get /days/monday.itch monday.itch"),
    ("files append", "evenfall files append more.itch /days/monday.itch"),
    ("files rm", "evenfall files rm /days/monday.itch"),
    ("files mv", "evenfall files mv /days/monday.itch /days/2026-11-23.itch"),
    ("files fsck", "evenfall files fsck"),
    ("files status", "evenfall files status"),
    ("files leases", "evenfall files leases"),
    ("files decommission", "evenfall files decommission 2"),
    ("files forget", "evenfall files forget 2"),
    ("files balance", "evenfall files balance"),
    ("files rebuild", "evenfall files rebuild"),
    ("feed play", "evenfall feed play day.itch50 --mold 239.1.1.1:26400"),
    ("feed info", "evenfall feed info day.itch50"),
    ("feed make", "evenfall feed make day.itch50 --messages 100000"),
    ("tap", "evenfall tap 239.1.1.1:26400"),
    ("config check", "evenfall config check evenfall.toml"),
    ("config default", "evenfall config default > evenfall.toml"),
    ("generate prometheus", "evenfall generate prometheus evenfall.toml --out prometheus.yml"),
    ("generate alerts", "evenfall generate alerts evenfall.toml --out evenfall-alerts.yml"),
    ("generate grafana", "evenfall generate grafana evenfall.toml --out dashboard.json"),
    ("generate systemd", "evenfall generate systemd evenfall.toml --out start-nodes.sh"),
    ("generate kubernetes", "evenfall generate kubernetes --hosts a=10.0.0.4 --out objects.json"),
    ("completions", "evenfall completions bash > /usr/share/bash-completion/completions/evenfall"),
    ("man", "evenfall man /usr/share/man/man1"),
];

/// Puts the examples below the help of this command and of all commands in it.
pub fn add_examples(command: Command) -> Command {
    add_below("", command)
}

fn add_below(path: &str, command: Command) -> Command {
    let command = command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        add_below(path.trim_start(), inner)
    });
    let Some((_, lines)) = EXAMPLES.iter().find(|(of, _)| *of == path) else { return command };
    let lines: String = lines.lines().map(|line| format!("\n  {line}")).collect();
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_help(format!("{before}Examples:{lines}"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::Cli;

    /// Commands of other programs, which bring their own help, and commands without the feature
    /// that has their arguments.
    fn is_elsewhere(command: &Command) -> bool {
        command.is_disable_help_flag_set() || command.is_allow_external_subcommands_set()
    }

    fn without_examples(path: &str, command: &Command, missing: &mut Vec<String>) {
        let mut inner = command.get_subcommands().filter(|one| one.get_name() != "help").peekable();
        if inner.peek().is_none() && !EXAMPLES.iter().any(|(of, _)| *of == path) {
            missing.push(path.to_owned());
        }
        for one in inner.filter(|one| !is_elsewhere(one)) {
            without_examples(format!("{path} {}", one.get_name()).trim_start(), one, missing);
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let mut missing = Vec::new();
        without_examples("", &Cli::command(), &mut missing);
        missing.retain(|path| path != "clock lab");
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_program_takes_every_example() {
        let mut refused = Vec::new();
        for (path, lines) in EXAMPLES {
            let mut found = Some(Cli::command());
            for word in path.split(' ') {
                found = found.and_then(|command| command.find_subcommand(word).cloned());
            }
            // A build without a feature lacks some commands.
            if found.is_none_or(|command| is_elsewhere(&command)) {
                continue;
            }
            for line in lines.lines() {
                let words = line.split(" > ").next().unwrap_or_default().split(' ');
                assert!(line.starts_with(&format!("evenfall {path}")), "{line}");
                let parsed = Cli::try_parse_from(words);
                refused.extend(parsed.err().map(|error| format!("{line}: {error}")));
            }
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }
}
