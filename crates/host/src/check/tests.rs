use super::*;
use crate::losses::sum_losses;

const WANTS: HostWants = HostWants {
    receive_buffer_bytes: 4 << 20,
    datagram_bytes: 1_432,
    kernel_forwards: false,
    busy_poll_us: None,
    real_time: false,
};

/// The files of a host below a directory of its own.
fn plant(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let file = root.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    root
}

/// What costs something, as "about: found".
fn costly(findings: &[HostFinding]) -> Vec<String> {
    let costly = findings.iter().filter(|finding| finding.verdict == FactVerdict::Costly);
    costly.map(|finding| format!("{}: {}", finding.about, finding.found)).collect()
}

#[test]
fn a_host_with_every_default_that_suits_another_purpose_is_told_what_mends_each() {
    let root = plant(&[
        ("proc/sys/net/core/rmem_max", "212992\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ("sys/devices/system/cpu/cpu10/cpufreq/scaling_governor", "performance\n"),
        ("sys/devices/system/cpu/cpufreq/boost", "1\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133\n"),
        ("sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "0\n"),
        ("sys/devices/system/clocksource/clocksource0/current_clocksource", "xen\n"),
        ("sys/devices/system/clocksource/clocksource0/available_clocksource", "xen tsc hpet\n"),
        ("proc/stat", "cpu  10 0 10 60 0 0 0 20 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n"),
        ("proc/net/snmp", "Udp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 9 7 0\n"),
        ("proc/self/status", "Name:\tevenfall\nCapEff:\t0000000000000000\n"),
    ]);
    let facts = HostFacts {
        cores: 2,
        quota_milli_cores: Some(1_500),
        ..HostFacts::read_below(root.path())
    };
    let findings = judge_host(&facts, &WANTS);
    assert_eq!(
        costly(&findings),
        [
            "receive buffers: 212992 bytes at most",
            "frequency of the cores: performance, powersave",
            "sleep of idle cores: C6, 133 us to wake up",
            "source of the clock: xen",
            "time that the hypervisor took: 20.00 % since the start",
            "processor time that control groups allow: 1.5 of 2 cores",
            "datagrams that the kernel dropped: 7 received, 0 sent, since the start",
        ]
    );
    let mend = |about: &str| {
        let finding = findings.iter().find(|finding| finding.about == about).unwrap();
        finding.mend.clone().unwrap()
    };
    assert_eq!(mend("receive buffers"), "sysctl -w net.core.rmem_max=8388608");
    assert!(mend("sleep of idle cores").ends_with("/cpuidle/state3/disable"));
    assert!(mend("source of the clock").starts_with("echo tsc > "));
}

#[test]
fn a_virtual_machine_that_tells_little_has_nothing_to_mend() {
    let facts = HostFacts::read_below(plant(&[]).path());
    let findings = judge_host(&facts, &WANTS);
    assert_eq!(costly(&findings), [""; 0]);
    assert!(findings.iter().any(|finding| finding.verdict == FactVerdict::Unknown));
    assert!(findings.iter().all(|finding| finding.mend.is_none()));
}

#[test]
fn rights_are_missed_where_the_kernel_is_to_forward_and_a_right_replaces_a_setting() {
    let mut facts = HostFacts { receive_buffer_max: Some(212_992), ..HostFacts::default() };
    let forwards = HostWants { kernel_forwards: true, ..WANTS };
    let missing = costly(&judge_host(&facts, &forwards));
    assert_eq!(missing.iter().filter(|about| about.starts_with("right CAP_")).count(), 2);
    facts.capabilities = 1 << CAP_NET_ADMIN | 1 << CAP_BPF;
    assert_eq!(costly(&judge_host(&facts, &forwards)), [""; 0]);
}

#[test]
fn a_card_is_judged_by_what_its_driver_tells() {
    let card = CardFacts {
        name: "eth0".into(),
        exists: true,
        driver: Some("ena".into()),
        mtu: Some(1_400),
        coalescing: Some(CoalescingFacts { receive_us: 64, is_adaptive: true }),
        rings: Some(RingSizes { receive: 1_024, receive_max: 8_192 }),
        channels: Some(ChannelCounts { combined: 1, combined_max: 8 }),
        gathers: Some(false),
        gathers_for_others: Some(true),
        gathering_ns: Some(200_000),
        losses: sum_losses([("pps_allowance_exceeded".into(), 12), ("rx_drops".into(), 0)]),
    };
    let forwards = HostWants { kernel_forwards: true, ..WANTS };
    let findings = card.judge_card(4, &forwards);
    assert_eq!(
        costly(&findings),
        [
            "eth0: MTU: 1400 bytes",
            "eth0: interrupts: after 64 us, adaptive",
            "eth0: GRO: off",
            "eth0: GRO holds back: 200000 ns",
            "eth0: GRO for others (rx-udp-gro-forwarding): on",
            "eth0: receive ring: 1024 of 8192 packets",
            "eth0: queues: 1 of 8",
            "eth0: packets lost: pps_allowance_exceeded 12",
        ]
    );
    let mends: Vec<_> = findings.iter().filter_map(|finding| finding.mend.as_deref()).collect();
    for mend in [
        "ethtool -L eth0 combined 4",
        "ethtool -C eth0 adaptive-rx off rx-usecs 0",
        "ethtool -K eth0 gro on",
        "ethtool -K eth0 rx-udp-gro-forwarding off",
        "echo 0 > /sys/class/net/eth0/gro_flush_timeout",
        "multicast.framing.datagram_bytes = 1372 in the settings; or, where the whole network \
         carries 1460 bytes, ip link set eth0 mtu 1460",
    ] {
        assert!(mends.contains(&mend), "{mend}: {mends:?}");
    }
    assert!(mends.iter().any(|mend| mend.contains("allowance of this kind of machine")));
    // A driver that tells nothing is not blamed.
    let silent = CardFacts { name: "eth1".into(), exists: true, ..CardFacts::default() };
    assert_eq!(costly(&silent.judge_card(4, &forwards)), [""; 0]);
}

#[test]
fn a_long_mtu_is_good_for_a_feed_and_its_limit_for_native_xdp_is_said() {
    let card = |mtu| CardFacts { name: "eth0".into(), exists: true, mtu, ..CardFacts::default() };
    let findings = card(Some(9_001)).judge_card(4, &WANTS);
    assert_eq!(costly(&findings), [""; 0]);
    let said = findings.iter().find(|finding| finding.about == "eth0: MTU for native XDP").unwrap();
    assert!(said.found.contains("ip link set eth0 mtu 3498"), "{}", said.found);
    let short = card(Some(1_500)).judge_card(4, &WANTS);
    assert!(short.iter().any(|finding| finding.found == "1500 bytes fit one page"));
}

#[test]
fn a_short_mtu_is_good_where_the_datagrams_of_the_run_fit_into_it() {
    // The MTU of a network of Google Cloud, unless somebody changed it.
    let card =
        CardFacts { name: "ens4".into(), exists: true, mtu: Some(1_460), ..CardFacts::default() };
    assert_eq!(costly(&card.judge_card(4, &WANTS)), [""; 0]);
    let longer = HostWants { datagram_bytes: 1_433, ..WANTS };
    assert_eq!(costly(&card.judge_card(4, &longer)), ["ens4: MTU: 1460 bytes"]);
}

#[test]
fn what_the_settings_ask_for_and_the_host_refuses_is_costly_with_its_command() {
    let facts = HostFacts { busy_read_us: Some(0), ..HostFacts::default() };
    let wants = HostWants { busy_poll_us: Some(50), real_time: true, ..WANTS };
    let findings = judge_host(&facts, &wants);
    let mends: Vec<_> = findings.iter().filter_map(|finding| finding.mend.as_deref()).collect();
    assert_eq!(mends.len(), 2, "{mends:?}");
    assert_eq!(mends[0], "sysctl -w net.core.busy_read=50");
    assert!(mends[1].starts_with("setcap cap_sys_nice+ep $(command -v evenfall)"), "{}", mends[1]);
    // A sysctl or a right is enough.
    let by_sysctl = HostFacts { busy_read_us: Some(50), ..HostFacts::default() };
    let by_right = HostFacts { capabilities: 1 << CAP_NET_ADMIN, ..facts };
    for facts in [by_sysctl, by_right] {
        let costly = costly(&judge_host(&facts, &HostWants { real_time: false, ..wants }));
        assert_eq!(costly, [""; 0]);
    }
}

#[test]
fn a_card_of_this_host_is_asked_and_a_missing_one_is_said() {
    let facts = HostFacts::read(&["lo".into(), "no-such-card".into()]);
    assert!(facts.cores > 0 && facts.cards[0].exists);
    assert_eq!(
        costly(&facts.cards[1].judge_card(1, &WANTS)),
        ["no-such-card: there is no such interface"]
    );
    assert!(!cards_in_use().contains(&"lo".to_owned()));
}
