//! The fairness log: one line per message, so that people can check the results by hand.
//!
//! ```text
//! stream,message,scheduled_ns,sent_ns,deadline_ns,first_arrival_ns,...,receivers,late
//! 0,17,1000,1010,5000,2000,3000,5100,5400,2,0
//! ```

use std::io::{self, BufRead, Write};

use super::FairnessRow;

/// First line of the file.
pub const HEADER: &str = "stream,message,scheduled_ns,sent_ns,deadline_ns,first_arrival_ns,\
                          last_arrival_ns,first_release_ns,last_release_ns,receivers,late";

const COLUMNS: usize = 11;

/// Writes rows. Give it a buffered writer.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        writeln!(out, "{HEADER}")?;
        Ok(Self { out })
    }

    /// Writes one row.
    ///
    /// # Errors
    /// The errors of the writer given to [`Writer::new`].
    pub fn write(&mut self, row: &FairnessRow) -> io::Result<()> {
        let FairnessRow { stream, message, scheduled_ns, sent_ns, deadline_ns, .. } = row;
        let FairnessRow { first_arrival_ns, last_arrival_ns, first_release_ns, .. } = row;
        let FairnessRow { last_release_ns, receivers, late, .. } = row;
        // All columns are numbers, so zero stands for no deadline.
        let deadline_ns = deadline_ns.unwrap_or(0);
        writeln!(
            self.out,
            "{stream},{message},{scheduled_ns},{sent_ns},{deadline_ns},{first_arrival_ns},\
             {last_arrival_ns},{first_release_ns},{last_release_ns},{receivers},{late}"
        )
    }

    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// The errors of the writer given to [`Writer::new`].
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Why a fairness log could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CsvError {
    /// The input failed.
    #[error("fairness log: {0}")]
    Io(io::Error),
    /// The first line is not [`HEADER`].
    #[error("fairness log: the first line must be `{HEADER}`")]
    Header,
    /// A line is not eleven numbers in their ranges.
    #[error("fairness log: line {line}: column `{column}` is no number in range")]
    Line {
        /// Line, counted from 1.
        line: u64,
        /// Column whose value is wrong or missing.
        column: &'static str,
    },
}

/// Reads rows; stops after the first error.
///
/// # Errors
/// [`CsvError`] when the header is not [`HEADER`], or a line is broken.
pub fn read(
    mut input: impl BufRead,
) -> Result<impl Iterator<Item = Result<FairnessRow, CsvError>>, CsvError> {
    let mut header = String::new();
    input.read_line(&mut header).map_err(CsvError::Io)?;
    if header.trim_end() != HEADER {
        return Err(CsvError::Header);
    }
    let mut failed = false;
    Ok(input.lines().zip(2u64..).map_while(move |(line, number)| {
        if failed {
            return None;
        }
        let row = line.map_err(CsvError::Io).and_then(|line| parse(&line, number));
        failed = row.is_err();
        Some(row)
    }))
}

fn parse(text: &str, line: u64) -> Result<FairnessRow, CsvError> {
    let names: Vec<&'static str> = HEADER.split(',').collect();
    let wrong = |column: usize| CsvError::Line { line, column: names[column] };
    let mut values = [0u64; COLUMNS];
    let mut fields = text.trim_end().split(',');
    for (column, value) in values.iter_mut().enumerate() {
        let field = fields.next().and_then(|field| field.parse().ok());
        *value = field.ok_or_else(|| wrong(column))?;
    }
    if fields.next().is_some() {
        return Err(wrong(COLUMNS - 1));
    }
    let narrow = |column: usize| u32::try_from(values[column]).map_err(|_| wrong(column));
    Ok(FairnessRow {
        stream: narrow(0)?,
        message: values[1],
        scheduled_ns: values[2],
        sent_ns: values[3],
        deadline_ns: Some(values[4]).filter(|deadline_ns| *deadline_ns > 0),
        first_arrival_ns: values[5],
        last_arrival_ns: values[6],
        first_release_ns: values[7],
        last_release_ns: values[8],
        receivers: narrow(9)?,
        late: narrow(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(message: u64) -> FairnessRow {
        FairnessRow {
            stream: 3,
            message,
            sent_ns: u64::MAX,
            receivers: 7,
            ..FairnessRow::default()
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::new(Vec::new()).expect("memory");
        (0..3).for_each(|message| writer.write(&row(message)).expect("memory"));
        let bytes = writer.finish().expect("memory");
        let rows: Result<Vec<_>, _> = read(&bytes[..]).expect("a header").collect();
        assert_eq!(rows.expect("rows"), [row(0), row(1), row(2)]);
    }

    #[test]
    fn mistakes_name_line_and_column() {
        let said = |body: &str| {
            let text = format!("{HEADER}\n{body}\n0,0,0,0,0,0,0,0,0,0,0\n");
            let rows: Vec<_> = read(text.as_bytes()).expect("a header").collect();
            assert_eq!(rows.len(), 1, "reading stops");
            rows[0].as_ref().expect_err("a mistake").to_string()
        };
        assert!(said("0,x,0,0,0,0,0,0,0,0,0").contains("line 2: column `message`"));
        assert!(said("0,1,0").contains("`sent_ns`"));
        assert!(said("0,0,0,0,0,0,0,0,0,5000000000,0").contains("`receivers`"));
        assert!(said("0,0,0,0,0,0,0,0,0,0,0,0").contains("`late`"));
        assert!(matches!(read(&b"a,b\n"[..]).err(), Some(CsvError::Header)));
    }
}
