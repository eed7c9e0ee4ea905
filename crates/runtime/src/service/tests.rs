//! The rules that all services share.

use super::*;

struct Toys;

const TOYS: &[RoleSpec] = &[
    RoleSpec {
        word: "train",
        aliases: &["rail"],
        nouns: ["train", "trains"],
        help: "Runs",
        keys: &["track"],
        keeps_data: false,
    },
    RoleSpec {
        word: "pony",
        aliases: &[],
        nouns: ["pony of wood", "ponies of wood"],
        help: "Rocks",
        keys: &[],
        keeps_data: false,
    },
];

impl Service for Toys {
    fn roles(&self) -> &'static [RoleSpec] {
        TOYS
    }

    fn tables(&self) -> Vec<KnownTable> {
        vec![KnownTable { table: "toys", keys: &["box"] }]
    }

    fn values(&self, _: &SettingsDocument) -> Result<toml::Table, SettingsError> {
        Ok(toml::Table::new())
    }

    fn check(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
        Ok(())
    }

    fn check_run(&self, _: &SettingsDocument) -> Result<(), SettingsError> {
        Ok(())
    }

    fn run(&self, _: &Start<'_>) -> Result<Value, Box<dyn Error>> {
        Ok(Value::Null)
    }
}

fn node(id: u32, role: &str, more: &str) -> String {
    format!(
        "[[node]]\nname = \"n{id}\"\nid = {id}\nrole = \"{role}\"\naddress = \"127.0.0.1:{id}\"\n\
         {more}\n"
    )
}

fn document(text: &str) -> SettingsDocument {
    SettingsDocument::parse(text, "t.toml", std::iter::empty(), &[]).expect("a document")
}

fn refusal(text: &str) -> String {
    check(&[&Toys], &document(text)).expect_err("a refusal").to_string()
}

#[test]
fn a_key_that_the_role_does_not_use_is_refused_with_key_line_and_role() {
    let said = refusal(&node(1, "pony", "track = 3"));
    let wanted = "t.toml: line 6: node n1: a node with role = \"pony\" does not use `track`; it \
                  belongs to train";
    assert_eq!(said, wanted);
    check(&[&Toys], &document(&node(1, "train", "track = 3"))).expect("its own key");
    check(&[&Toys], &document(&node(1, "rail", "track = 3"))).expect("under its earlier word");
    let mut later = document(&node(1, "pony", ""));
    later.set("--track 3", "node.0.track", "3").expect("a key");
    let said = check(&[&Toys], &later).expect_err("a refusal").to_string();
    assert!(said.starts_with("--track 3: node n1"), "{said}");
}

#[test]
fn unknown_tables_keys_and_roles_are_refused_with_what_is_known() {
    for (text, words) in [
        ("[toy]\n".to_owned(), ["unknown field `toy`", "`toys`"]),
        ("[toys]\nboxes = 1\n".to_owned(), ["unknown field `boxes`", "`box`"]),
        (node(1, "pony", "colour = 1"), ["line 6", "unknown field `colour`"]),
        (node(1, "bear", ""), ["line 4: node n1: role = \"bear\"", "train, pony"]),
    ] {
        let said = refusal(&text);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

#[test]
fn nodes_are_counted_by_their_roles() {
    let text = node(1, "pony", "") + &node(2, "rail", "") + &node(3, "pony", "");
    let counted = counts(&[&Toys], &document(&text)).expect("counts");
    assert_eq!(counted, ["1 train", "2 ponies of wood"]);
}
