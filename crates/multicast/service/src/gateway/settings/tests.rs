use super::*;

/// A document of a root and a gateway with these keys, and this table.
fn document(keys: &str, table: &str) -> SettingsDocument {
    let text = format!(
        "{table}\n\
         [[node]]\nname = \"root\"\nid = 0\nrole = \"root\"\naddress = \"127.0.0.1:9000\"\n\
         [[node]]\nname = \"gw\"\nid = 1\nrole = \"gateway\"\naddress = \"127.0.0.1:9001\"\n{keys}"
    );
    SettingsDocument::parse(&text, "evenfall.toml", std::iter::empty(), &[]).unwrap()
}

fn refusal(keys: &str, table: &str) -> String {
    all_gateways(&document(keys, table)).unwrap_err().to_string()
}

#[test]
fn participants_requests_and_defaults_are_read() {
    let keys = "participants = [\"127.0.0.1:7500\", \"127.0.0.2:7500\"]\n\
                rerequest = \"127.0.0.1:7400\"";
    let document = document(keys, "[run]\ntrees = 3");
    let gateway = GatewayNode::of(&document, "gw").unwrap();
    let third = ["127.0.0.1:7502", "127.0.0.2:7502"].map(|a| a.parse().unwrap());
    assert_eq!(gateway.participants_of(2), third);
    assert!(gateway.is_local());
    assert_eq!(table(&document).unwrap(), GatewaySettings::default());
    // A server on loopback answers whoever is on this machine.
    assert!(gateway.requesters.iter().any(|range| range.contains([127, 9, 9, 9].into())));
    assert!(GatewayNode::of(&document, "root").is_err());
}

#[test]
fn a_server_beyond_loopback_answers_the_hosts_that_are_participants() {
    let keyed = "[run]\nkey_file = \"evenfall.key\"";
    let keys = "participants = [\"10.0.0.8:7500\"]\nrerequest = \"10.0.0.1:7400\"";
    let gateway = GatewayNode::of(&document(keys, keyed), "gw").unwrap();
    assert_eq!(gateway.requesters, [AddressRange::of([10, 0, 0, 8].into())]);
    let group = "participants = [\"239.1.1.1:7500\"]\nrerequest = \"10.0.0.1:7400\"";
    assert!(refusal(group, keyed).contains("list who may ask"), "{}", refusal(group, keyed));
    let listed = format!("{group}\nrequesters = [\"10.0.0.0/24\"]\ninterface = \"10.0.0.1\"");
    let gateway = GatewayNode::of(&document(&listed, keyed), "gw").unwrap();
    assert!(gateway.requesters[0].contains([10, 0, 0, 200].into()));
    assert!(!gateway.requesters[0].contains([10, 0, 1, 0].into()) && !gateway.is_local());
}

#[test]
fn mistakes_are_refused_with_their_line_and_what_to_do() {
    let mold = "participants = [\"127.0.0.1:7500\"]";
    let keyed = "participants = [\"127.0.0.1:7500\"]\nparticipant_keys = [\"a.key\"]";
    let twice = "participants = [\"127.0.0.1:7500\", \"127.0.0.1:7500\"]";
    for (keys, table, words) in [
        ("", "", "to whom shall the gateway hand messages on"),
        ("participants = [\"10.0.0.8:7500\"]", "", "set run.key_file"),
        ("participants = [\"239.1.1.1:7500\"]", "", "set run.key_file"),
        (twice, "", "listed twice"),
        ("participants = [\"127.0.0.1:0\"]", "", "ports go from 1 to 65535"),
        ("participants = [\"127.0.0.1:65535\"]", "[run]\ntrees = 2", "ports go from 1 to 65535"),
        ("participants = [\"127.0.0.1:7500\", \"[::1]:7500\"]", "", "either IPv4 or IPv6"),
        ("participants = [\"no port\"]", "", "give an IP address or a name"),
        (mold, "[gateway]\nprotocol = \"sealed\"", "names 0 files, and there are 1"),
        (keyed, "", "mold datagrams are not sealed"),
        (mold, "[gateway]\npacket_bytes = 50", "gateway.packet_bytes = 50: must be 100 to"),
        (mold, "[gateway]\nring_bytes = 0", "must be above 0"),
        (mold, "[gateway]\nheartbeat = \"0s\"", "gateway.heartbeat"),
        (mold, "[gateway]\nprotocol = \"itch\"", "unknown variant `itch`"),
        (
            "participants = [\"127.0.0.1:7500\"]\nrerequest = \"127.0.0.1:7400\"",
            "[gateway]\nprotocol = \"plain\"",
            "plain datagrams have no requests",
        ),
    ] {
        let said = refusal(keys, table);
        assert!(said.contains(words) && said.contains("line"), "{said}, not {words}");
    }
}

#[test]
fn ranges_of_addresses_are_read_written_and_compared() {
    for (text, inside, outside) in [
        ("10.0.0.0/24", "10.0.0.255", "10.0.1.0"),
        ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
        ("0.0.0.0/0", "255.255.255.255", "::1"),
        ("fd00::/8", "fd12::9", "fe80::1"),
        ("10.0.0.7", "::ffff:10.0.0.7", "::1"),
    ] {
        let range: AddressRange = text.parse().unwrap();
        assert_eq!(range.to_string(), text);
        assert!(range.contains(inside.parse().unwrap()), "{text} {inside}");
        assert!(!range.contains(outside.parse().unwrap()), "{text} {outside}");
    }
    for text in ["", "10.0.0", "10.0.0.0/33", "10.0.0.0/", "host", "10.0.0.0/-1", "fd00::/129"] {
        assert!(text.parse::<AddressRange>().is_err(), "{text}");
    }
}
