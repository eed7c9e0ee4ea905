//! The check that a fuzz target and the replay of its corpus call. It takes any bytes, and panics
//! when a promise breaks.

use crate::csv;

/// Reads any text as a fairness log, and checks the rows.
pub fn fairness_csv(data: &[u8]) {
    let Ok(rows) = csv::read(data) else { return };
    let rows: Vec<_> = rows.map_while(Result::ok).collect();
    let mut out = csv::Writer::new(Vec::new()).expect("memory takes it");
    for row in &rows {
        out.write(row).expect("memory takes it");
    }
    let text = out.finish().expect("memory takes it");
    let again: Result<Vec<_>, _> = csv::read(&text[..]).expect("a header").collect();
    assert_eq!(again.expect("what is written can be read"), rows);
}

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_file_passes_its_check() {
        replay::corpora(&[("fairness_csv", fairness_csv)]);
    }
}
