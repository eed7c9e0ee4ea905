//! Tables as databases, venues and people write them, and stores whose files were damaged. The
//! tables with a name such as `a15-bom.csv` are those of the field reports, in `tests/field`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use super::common::{Said, Scratch, evenfall, finish, say, signal};

/// A table or a schema of the field reports.
fn field(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/field");
    folder.join(name).display().to_string()
}

/// A store, and the files that are given to it.
struct Tables {
    scratch: Scratch,
    dir: PathBuf,
}

impl Tables {
    fn new() -> Self {
        let scratch = Scratch::beside();
        let dir = scratch.path("store");
        Self { scratch, dir }
    }

    /// `evenfall store VERB DIR ...`.
    fn store(&self, words: &[&str]) -> Said {
        let dir = self.dir.display().to_string();
        say(&[&["store", words[0], &dir][..], &words[1..]].concat())
    }

    fn create(&self, name: &str, schema: &str, more: &[&str]) {
        let said = self.store(&[&["create", name, "--schema", schema][..], more].concat());
        assert!(said.ok, "{}{}", said.out, said.err);
    }

    fn append(&self, name: &str, csv: &str, more: &[&str]) -> Said {
        self.store(&[&["append", name, "--csv", csv][..], more].concat())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.scratch.path(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    }
}

#[test]
fn rows_under_a_used_number_are_kept_and_named() {
    let tables = Tables::new();
    let window = ["--window", "1s", "--sequence", "number"];
    tables.create("t", &field("a01-trades-schema.json"), &window);
    let said = tables.append("t", &field("a01-csv-equal-numbers.csv"), &[]);
    assert!(!said.ok && said.err.contains("2 have a number that came before"), "{}", said.err);
    assert!(said.err.contains("kept: line 3, whose number 5"), "{}", said.err);
    assert!(
        said.out.contains("3 records appended") && said.out.contains("1 copies"),
        "{}",
        said.out
    );
    let rows = tables.store(&["read", "t"]).out;
    let prices: Vec<&str> = rows.lines().skip(1).filter_map(|row| row.split(',').nth(2)).collect();
    assert_eq!(prices, ["1.5000", "2.5000", "9.5000"]);
}

#[test]
fn what_other_programs_write_is_appended_or_refused_by_its_line() {
    let tables = Tables::new();
    let trades = field("a01-trades-schema.json");
    for (file, more, appended) in [
        ("a15-bom.csv", &[][..], "1 records"),
        ("a15-quoted.csv", &[], "1 records"),
        ("a15-zeros.csv", &[], "1 records"),
        ("a15-ms.csv", &["--time-unit", "ms"], "2 records"),
    ] {
        let name = file.trim_end_matches(".csv");
        tables.create(name, &trades, &[]);
        let said = tables.append(name, &field(file), more);
        assert!(said.ok && said.out.contains(appended), "{file}: {}{}", said.out, said.err);
        let rows = tables.store(&["read", name]).out;
        assert!(rows.contains(",101.2500\n"), "{file}: {rows}");
    }
    tables.create("refused", &trades, &[]);
    for (file, words) in [
        ("a15-null.csv", "a15-null.csv, line 2: price: \"\" is no value"),
        ("a15-empty.csv", "a15-empty.csv, line 1: it is empty"),
        ("a15-ms.csv", "a15-ms.csv, line 2: time: \"1764417600123\" looks like ms"),
    ] {
        let said = tables.append("refused", &field(file), &[]);
        assert!(!said.ok && said.err.contains(words), "{file}: {}", said.err);
        assert!(said.out.is_empty() || said.out.starts_with("0 records"), "{file}: {}", said.out);
    }
    let more =
        tables.write("more.csv", "time,number,venue,price\n1764400000000000000,1,XNAS,1.5\n");
    let said = tables.append("refused", &more, &[]);
    assert!(said.ok && said.out.contains("1 records"), "{}{}", said.out, said.err);
    assert!(said.err.contains("more.csv: columns that refused lacks are left out: venue"));
}

#[test]
fn bars_are_exact_at_their_ends_and_name_the_fields_that_there_are() {
    let tables = Tables::new();
    let schema = tables.write(
        "bars.json",
        r#"{"record_bytes": 24, "price_decimals": 2, "fields": [
            {"name": "time", "offset": 0, "len": 8, "type": "time"},
            {"name": "size", "offset": 8, "len": 8, "type": "u64"},
            {"name": "price", "offset": 16, "len": 8, "type": "price", "aggregate": true}]}"#,
    );
    tables.create("t", &schema, &[]);
    // The first second has its first and its last nanosecond, and the third has no row.
    let csv = tables.write(
        "bars.csv",
        "time,size,price\n1764400000000000000,1,1.50\n1764400000999999999,2,-2.25\n\
         1764400001000000000,3,3.00\n1764400003500000000,4,4.00\n",
    );
    let said = tables.append("t", &csv, &[]);
    assert!(said.ok, "{}{}", said.out, said.err);
    let bars = |more: &[&str]| tables.store(&[&["bars", "t", "--every", "1s"][..], more].concat());
    let said = bars(&[]);
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(
        lines,
        [
            "time,count,price_first,price_least,price_greatest,price_last,price_sum",
            "1764400000000000000,2,1.50,-2.25,1.50,-2.25,-0.75",
            "1764400001000000000,1,3.00,3.00,3.00,3.00,3.00",
            "1764400003000000000,1,4.00,4.00,4.00,4.00,4.00",
        ],
        "{}",
        said.err
    );
    let said = bars(&["--from", "1764400003s", "--fields", "price", "--json"]);
    let values = r#"{"first":4.00,"least":4.00,"greatest":4.00,"last":4.00,"sum":4.00}"#;
    let line =
        format!("{{\"time\":1764400003000000000,\"count\":1,\"fields\":{{\"price\":{values}}}}}\n");
    assert_eq!(said.out, line, "{}", said.err);
    for (more, words) in [
        (&["--fields", "prise"][..], "t has no field prise; the nearest are price"),
        (&["--fields", "size"], "field size of t lacks \"aggregate\": true"),
        (&["--from", "1764400002s", "--to", "1764400002s"], "t has no record between these times"),
    ] {
        let said = bars(more);
        assert!(!said.ok && said.err.contains(words), "{more:?}: {}", said.err);
        assert!(said.out.is_empty(), "{more:?}: {}", said.out);
    }
    let said = tables.store(&["bars", "u", "--every", "1s"]);
    assert!(!said.ok && said.err.contains("no file u; the nearest are t"), "{}", said.err);
}

#[test]
fn text_fills_a_field_of_bytes_and_a_letter_is_no_number() {
    let tables = Tables::new();
    let (schema, csv) = (field("a15-databento-schema.json"), field("a15-databento.csv"));
    tables.create("numbers", &schema, &[]);
    let said = tables.append("numbers", &csv, &[]);
    assert!(
        !said.ok && said.err.contains("line 2: side: \"B\" is no whole number"),
        "{}",
        said.err
    );
    // The side as a byte of text.
    let text = fs::read_to_string(&schema).expect("a schema");
    let schema = tables.write("schema.json", &text.replace("\"u8\"", "\"bytes\""));
    tables.create("letters", &schema, &[]);
    let said = tables.append("letters", &csv, &[]);
    assert!(said.ok, "{}", said.err);
    let rows = tables.store(&["read", "letters"]).out;
    let row = "1795184999698000000,4720.250000000,3,4553483420202020,42";
    assert_eq!(rows.lines().nth(1), Some(row), "{rows}");
}

/// A table of 50,000 rows, a microsecond apart. The row in line 30,002 is further away from its
/// place by `other_ns`.
fn deep_rows(other_ns: i64) -> String {
    let mut text = String::from("time,number,price\n");
    for row in 0..50_000 {
        let time_ns = 1_764_400_000_000_000_000 + row * 1_000;
        let time_ns = time_ns + if row == 30_000 { other_ns } else { 0 };
        text.push_str(&format!("{time_ns},{row},101.25\n"));
    }
    text
}

#[test]
fn a_wrong_time_in_a_deep_row_is_named_by_its_line_and_the_rows_before_it_are_there() {
    let tables = Tables::new();
    let trades = field("a01-trades-schema.json");
    let ten_years_ns = 10 * 365 * 86_400 * 1_000_000_000;
    for (name, other_ns, words) in [
        ("back", -5_000_000_000, "keeps its window"),
        ("ahead", ten_years_ns, "so far ahead of this machine's clock"),
    ] {
        let csv = tables.write(&format!("{name}.csv"), &deep_rows(other_ns));
        tables.create(name, &trades, &[]);
        let said = tables.append(name, &csv, &[]);
        let line = format!("{name}.csv, line 30002: ");
        let is_named = said.err.contains(&line) && said.err.contains(words);
        assert!(!said.ok && is_named, "{}", said.err);
        assert!(said.out.contains("30000 records appended"), "{}", said.out);
    }
}

#[test]
fn damaged_names_are_named_without_a_panic_and_come_back_from_the_objects() {
    let tables = Tables::new();
    tables.create("t", &field("a01-trades-schema.json"), &[]);
    let said = tables.append("t", &field("a15-zeros.csv"), &[]);
    assert!(said.ok, "{}", said.err);
    // A list without an end is named and not read.
    let (list, names) = (tables.dir.join("SEALED"), tables.dir.join("names.redb"));
    let whole = fs::read(&list).expect("the list of a clean stop");
    let sparse = fs::File::options().write(true).open(&list).expect("the list");
    sparse.set_len(300 << 20).expect("a hole");
    let said = tables.store(&["verify"]);
    assert!(!said.ok && said.out.contains("SEALED: the file is longer"), "{}", said.out);
    fs::write(&list, whole).expect("the list");

    let bytes = fs::read(&names).expect("the names").len() as u64;
    let cut = fs::File::options().write(true).open(&names).expect("the names");
    cut.set_len(bytes / 2).expect("a cut");
    for verb in [&["ls"][..], &["read", "t"], &["verify"], &["retain", "t", "--age", "1d"]] {
        let said = tables.store(verb);
        let all = said.out + &said.err;
        assert!(!said.ok && !all.contains("panicked"), "{verb:?}: {all}");
        assert!(all.contains("names.redb"), "{verb:?}: {all}");
        assert!(verb == ["verify"] || all.contains("is damaged: move it away"), "{verb:?}: {all}");
    }
    fs::rename(&names, tables.scratch.path("names.redb")).expect("moved away");
    let next = tables.write("next.csv", "time,number,price\n1795184999698000001,2,7\n");
    let said = tables.append("t", &next, &[]);
    assert!(said.ok, "{}", said.err);
    let rows = tables.store(&["read", "t"]).out;
    assert_eq!(rows.lines().count(), 3, "{rows}");
}

/// The server is killed when it has acknowledged records, and one bit of a journal is flipped.
#[test]
fn a_flipped_bit_in_a_journal_is_told_by_verify_and_when_the_store_opens() {
    let tables = Tables::new();
    tables.create("t", &field("a01-trades-schema.json"), &[]);
    let dir = tables.dir.display().to_string();
    let serve = ["store", "serve", &dir, "--listen", "127.0.0.1:0"];
    let mut server = evenfall(&serve).spawn().expect("a server");
    let mut line = String::new();
    let out = server.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let address = line.trim().strip_prefix("serving ").expect("an address");
    let many = tables.write("many.csv", &deep_rows(0));
    let said = say(&["store", "append", address, "t", "--csv", &many]);
    assert!(said.ok && said.out.contains("50000 records"), "{}{}", said.out, said.err);
    signal(server.id(), "KILL");
    finish(server);

    let journals = fs::read_dir(&tables.dir).expect("a store").flatten();
    let journals = journals.filter(|file| file.file_name().to_string_lossy().starts_with("J-"));
    let journals = journals.map(|file| (file.path(), fs::read(file.path()).expect("a journal")));
    let written = |(_, bytes): &(PathBuf, Vec<u8>)| bytes.iter().filter(|byte| **byte != 0).count();
    let (journal, mut bytes) = journals.max_by_key(written).expect("a journal");
    bytes[100_000] ^= 1;
    fs::write(&journal, bytes).expect("a journal");
    let name = journal.file_name().expect("a name").to_string_lossy().into_owned();
    let said = tables.store(&["verify"]);
    assert!(!said.ok && said.out.contains(&name), "{}{}", said.out, said.err);
    // Nothing of this is taken for the end that a crash tears.
    let said = tables.store(&["verify", "--partial"]);
    assert!(!said.ok, "{}{}", said.out, said.err);
    let one = tables.write("one.csv", "time,number,price\n1764500000000000000,7,1.5\n");
    let said = tables.append("t", &one, &[]);
    assert!(
        said.err.contains("damage: ") && said.err.contains("whole commits behind are read"),
        "{}",
        said.err
    );
    // The command has done its work, and its end says that there was damage.
    assert!(!said.ok && said.out.contains("1 records appended"), "{}{}", said.out, said.err);
    let kept = fs::read_dir(&tables.dir).expect("a store").flatten();
    let aside = format!("DAMAGED-{name}-");
    let mut kept = kept.map(|file| file.file_name().to_string_lossy().into_owned());
    assert!(kept.any(|file| file.starts_with(&aside)), "{aside}");
    // All records are there but those of the damaged commit that no chunk has: less than a segment.
    let said = tables.store(&["ls", "--files"]);
    assert!(said.ok && said.out.contains("50001"), "{}{}", said.out, said.err);
}
