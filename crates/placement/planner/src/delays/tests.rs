use super::*;

fn parse(text: &str) -> DelayMatrix {
    DelayMatrix::parse(text).expect("a good file").delays
}

#[test]
fn a_matrix_reads_with_and_without_names() {
    let named = parse("host,a,b,c\na,0,51,60.5\nb,49,0,58\nc,61,57,-\n");
    assert_eq!(named.names(), ["a", "b", "c"]);
    assert_eq!(named.edge(0, 2).map(|stats| stats.p90_us), Some(60.5));
    assert!(named.edge(1, 1).is_none() && named.edges() == 6);
    let bare = parse("0 51 60.5\n49 0 58\n61 57 0\n");
    assert_eq!((bare.names()[2].as_str(), bare.edge(2, 1)), ("3", named.edge(2, 1)));
    let cornerless = parse("  a b\na 0 51\nb 49 0\n");
    assert_eq!(cornerless.edge(1, 0).map(|stats| stats.p50_us), Some(49.0));
}

#[test]
fn a_bad_cell_of_a_matrix_is_named_by_row_and_column() {
    let cases = [
        ("host,a,b\na,0,\nb,49,0\n", "line 2: row 1 (a), column 2 (b): a gap"),
        ("0,5\n0,0\n", "line 2: row 2 (2), column 1 (1): 0, but a delay is above 0"),
        ("0,5\n-3,0\n", "row 2 (2), column 1 (1): -3"),
        ("0,5\nfast,0\n", "row 2 (2), column 1 (1): \"fast\" is no number"),
        ("0,5,6\n5,0,6\n", "2 rows for 2 hosts"),
        ("0,5\n5\n", "row 2 (2), column 2"),
        ("host,a,a\na,0,5\na,5,0\n", "two hosts are named \"a\""),
        ("", "line 1: the file is empty"),
        ("hello world\nfoo;bar\n", "a pool needs two hosts"),
        ("5\n", "a pool needs two hosts"),
        ("0,inf\n5,0\n", "inf, but"),
    ];
    for (text, wanted) in cases {
        let said = match DelayMatrix::parse(text) {
            Ok(loaded) => format!("accepted: {}", loaded.delays.hosts()),
            Err(error) => error.to_string(),
        };
        // A short last row is accepted when only the cell of the diagonal is missing.
        if text == "0,5\n5\n" {
            assert!(said.starts_with("accepted"), "{said}");
        } else if text.starts_with("0,5,6") {
            assert!(said.contains("3 cells for 2 hosts"), "{said}");
        } else {
            assert!(said.contains(wanted), "{said}");
        }
    }
}

#[test]
fn a_list_names_what_it_skips_and_pools_repeats_by_their_median() {
    let text = "run,parent,child,p25_us,p50_us,p75_us,p90_us,stddev_us,recv,rate_pps,duration_s\n\
        A,a,b,40,50,60,70,5,100,10,10\nA,a,b,42,52,62,72,90,90,10,10\n\
        A,a,b,44,54,64,74,6,100,10,10\nA,b,a,0,0,0,0,0,0,10,10\nA,b,a,5,4,6,7,1,100,10,10\n\
        A,a,a,5,6,7,8,1,100,10,10\nA,b,c,5,x,7,8,1,100,10,10\nA,b\nB,a,c,1,2,3,4,5,95,10,10\n";
    let loaded = DelayMatrix::parse(text).expect("a good file");
    let delays = &loaded.delays;
    assert_eq!(delays.names(), ["a", "b", "c"]);
    let edge = delays.edge(0, 1).expect("measured");
    assert_eq!((edge.p25_us, edge.p50_us, edge.p90_us, edge.stddev_us), (42.0, 52.0, 72.0, 6.0));
    assert_eq!((edge.loss, edge.count), (0.0, 290));
    assert!((delays.edge(0, 2).expect("measured").loss - 0.05).abs() < 1e-6);
    assert!(
        delays.edge(1, 0).is_none()
            && !delays.has(DelayStatistic::P99)
            && delays.has(DelayStatistic::P90)
    );
    let lines: Vec<usize> = loaded.skipped.iter().map(|row| row.line).collect();
    assert_eq!((lines, loaded.skipped_rows), (vec![5, 6, 7, 8, 9], 5));
    assert!(loaded.skipped[1].to_string().contains("b to a: p50 is 4, below"));
    assert!(DelayMatrix::parse("parent,child,p50_us\na,b,0\n").is_err(), "nothing is left");
    assert!(DelayMatrix::parse("parent,child,speed\na,b,1\n").is_err(), "no delays");
}

#[test]
fn the_public_measurements_have_the_pairs_that_their_description_says() {
    let data = std::env::var("EVENFALL_DATA").unwrap_or("../../../shared/data".into());
    let Ok(text) = std::fs::read_to_string(format!("{data}/latency/gcp_pairs_owd_us.csv")) else {
        println!("skipped: no data");
        return;
    };
    let loaded = DelayMatrix::parse(&text).expect("a good file");
    assert_eq!((loaded.delays.hosts(), loaded.delays.edges(), loaded.skipped_rows), (20, 110, 112));
}

#[test]
fn statistics_of_samples_are_nearest_ranks() {
    let mut samples: Vec<f32> = (1..=100).rev().map(|us| us as f32).collect();
    let stats = EdgeStats::from_samples(&mut samples, 125).expect("some arrived");
    assert_eq!((stats.p25_us, stats.p50_us, stats.p90_us), (25.0, 50.0, 90.0));
    assert!((stats.mean_us - 50.5).abs() < 1e-3 && (stats.stddev_us - 28.866).abs() < 1e-2);
    assert!((stats.loss - 0.2).abs() < 1e-6);
    assert!(EdgeStats::from_samples(&mut [], 5).is_none());
}

#[test]
fn loss_makes_percentiles_later_and_in_the_end_infinite() {
    let mut samples: Vec<f32> = (1..=1000).map(|us| us as f32).collect();
    let stats = EdgeStats::from_samples(&mut samples, 1_053).expect("some arrived");
    let counted = stats.counting_loss();
    // The 90th percentile of 1,053 sent probes is about the 947th of the arrived probes.
    assert!((counted.p90_us - 947.7).abs() < 3.0, "{}", counted.p90_us);
    assert!(counted.p99_us.is_infinite() && counted.p50_us > stats.p50_us);
    assert_eq!(EdgeStats::constant(5.0).counting_loss(), EdgeStats::constant(5.0));
}

#[test]
fn rounds_merge_to_what_one_long_measurement_says() {
    let mut prng = evenfall_core::Prng::new(1);
    let rounds: Vec<Vec<f32>> = (0..4)
        .map(|_| (0..2_000).map(|_| 50.0 + prng.exponential(20.0) as f32).collect())
        .collect();
    let mut all = rounds.concat();
    let each = rounds.into_iter().map(|mut r| EdgeStats::from_samples(&mut r, 2_000));
    let merged = EdgeStats::mean_of(&each.flatten().collect::<Vec<_>>()).expect("rounds");
    let whole = EdgeStats::from_samples(&mut all, 8_000).expect("samples");
    assert!((merged.stddev_us - whole.stddev_us).abs() < 0.01);
    assert!((merged.p90_us / whole.p90_us - 1.0).abs() < 0.02);
    assert_eq!(merged.count, 8_000);
}

#[test]
fn unknown_statistics_survive_json() {
    let stats = EdgeStats { p50_us: 5.0, ..EdgeStats::UNKNOWN };
    assert_eq!(stats, stats.clone());
    assert!(stats.flaw().is_none() && EdgeStats::UNKNOWN.flaw().is_some());
}
