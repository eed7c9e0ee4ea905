//! A shuffle as a matrix: who sends how many bytes to whom, and what that takes at least.
//!
//! The text form is for people and for other programs: one row per sender, one cell per receiver,
//! separated by blanks, bytes as whole numbers; `#` starts a comment.
//!
//! ```text
//! # 3 nodes
//! 0   1500 200
//! 900 0    800
//! 800 200  0
//! ```

use core::fmt;

use evenfall_core::math;

/// Most nodes of a matrix: ranks are 16 bits on the wire.
pub const NODES_MAX: usize = 1 << 16;
/// Most bytes of one message: offsets are 32 bits on the wire.
pub const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;

/// Sizes of the messages of one shuffle: `cells[sender * nodes + receiver]`, in bytes. The diagonal
/// is what stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    nodes: usize,
    cells: Vec<u64>,
}

/// What is wrong with a matrix. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixError {
    /// There is no row.
    Empty,
    /// A cell is not a whole number of bytes.
    Cell {
        /// Line of the file.
        line: usize,
        /// Cell of the row.
        column: usize,
        /// What stands there.
        text: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A row is longer or shorter than there are rows.
    NotSquare {
        /// Line of the file.
        line: usize,
        /// Cells of that row.
        cells: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// More than [`NODES_MAX`] rows.
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
    },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the matrix has no rows: write one line per sender"),
            Self::Cell { line, column, text, what } => {
                write!(
                    f,
                    "line {line}, cell {column}: \"{text}\" {what}; write bytes, such as 1500"
                )
            }
            Self::NotSquare { line, cells, rows } => write!(
                f,
                "line {line} has {cells} cells, but there are {rows} rows: a shuffle matrix is \
                 square, one row per sender and one cell per receiver"
            ),
            Self::TooLarge { rows } => {
                write!(f, "{rows} rows: at most {NODES_MAX} nodes take part in a shuffle")
            }
        }
    }
}

impl std::error::Error for MatrixError {}

/// Bounds of a shuffle on a fat tree of racks: [`Matrix::bound`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Hosts below one switch; nodes are placed in order.
    pub rack_hosts: usize,
    /// Bits per second of a host's link, each way.
    pub host_bits_per_s: f64,
    /// Bits per second between a rack and the core, each way.
    pub rack_bits_per_s: f64,
}

impl Matrix {
    /// A matrix of zeros.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, cells: vec![0; nodes * nodes] }
    }

    /// A matrix of these cells, row by row.
    ///
    /// # Panics
    /// When there are not `nodes * nodes` of them.
    pub fn of(nodes: usize, cells: Vec<u64>) -> Self {
        assert_eq!(cells.len(), nodes * nodes, "a matrix is square");
        Self { nodes, cells }
    }

    /// How many nodes take part.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Bytes from one node to another.
    pub fn cell(&self, from: usize, to: usize) -> u64 {
        self.cells[from * self.nodes + to]
    }

    /// Sets one cell.
    pub fn set(&mut self, from: usize, to: usize, bytes: u64) {
        self.cells[from * self.nodes + to] = bytes;
    }

    /// What one node sends, itself included.
    pub fn row(&self, from: usize) -> &[u64] {
        &self.cells[from * self.nodes..(from + 1) * self.nodes]
    }

    /// All bytes, those that stay included.
    pub fn total(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// Bytes that a node sends to others.
    pub fn sent_by(&self, node: usize) -> u64 {
        self.row(node).iter().sum::<u64>() - self.cell(node, node)
    }

    /// Bytes that a node receives from others.
    pub fn received_by(&self, node: usize) -> u64 {
        (0..self.nodes).filter(|&from| from != node).map(|from| self.cell(from, node)).sum()
    }

    /// Message skewness: the standard deviation of the cells over the largest that any matrix of
    /// the same size and sum can have (section 5 of the thesis). 0 when all are equal, 1 when
    /// every node sends all it has to one other.
    pub fn skewness(&self) -> f64 {
        let (n, total) = (self.nodes as f64, self.total() as f64);
        if self.nodes < 2 || total == 0.0 {
            return 0.0;
        }
        let mean = total / (n * n);
        let square = self.cells.iter().map(|&c| math::square(c as f64 / mean - 1.0)).sum::<f64>();
        (square / (n * n)).sqrt() / (n - 1.0).sqrt()
    }

    /// Seconds that the shuffle takes at least: the most loaded of all links of hosts and racks
    /// (section 6.3). `frame` says what a message of so many bytes costs a link, in bytes.
    pub fn bound(&self, links: &Links, frame: impl Fn(u64) -> f64) -> f64 {
        let racks = self.nodes.div_ceil(links.rack_hosts);
        let mut hosts = vec![[0.0f64; 2]; self.nodes];
        let mut uplinks = vec![[0.0f64; 2]; racks];
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|&to| to != from) {
                let cost = frame(self.cell(from, to));
                hosts[from][0] += cost;
                hosts[to][1] += cost;
                let (a, b) = (from / links.rack_hosts, to / links.rack_hosts);
                if a != b {
                    uplinks[a][0] += cost;
                    uplinks[b][1] += cost;
                }
            }
        }
        let most = |loads: &[[f64; 2]]| loads.iter().flatten().copied().fold(0.0, f64::max);
        let host = most(&hosts) * 8.0 / links.host_bits_per_s;
        host.max(most(&uplinks) * 8.0 / links.rack_bits_per_s)
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// [`MatrixError`], with the line it is on.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        let mut cells = Vec::new();
        let mut rows = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line_text = line.split('#').next().unwrap_or("").trim();
            if line_text.is_empty() {
                continue;
            }
            let before = cells.len();
            for (column, word) in line_text.split_whitespace().enumerate() {
                cells.push(cell(word).map_err(|what| MatrixError::Cell {
                    line: number + 1,
                    column: column + 1,
                    text: word.chars().take(40).collect(),
                    what,
                })?);
            }
            rows.push((number + 1, cells.len() - before));
        }
        let nodes = rows.len();
        if nodes == 0 {
            return Err(MatrixError::Empty);
        }
        if nodes > NODES_MAX {
            return Err(MatrixError::TooLarge { rows: nodes });
        }
        if let Some(&(line, cells)) = rows.iter().find(|row| row.1 != nodes) {
            return Err(MatrixError::NotSquare { line, cells, rows: nodes });
        }
        Ok(Self { nodes, cells })
    }
}

fn cell(word: &str) -> Result<u64, &'static str> {
    match word.parse::<u64>() {
        Ok(bytes) if bytes <= MESSAGE_BYTES_MAX => Ok(bytes),
        Ok(_) => Err("is more than a message can hold (4 GiB)"),
        Err(_) if word.starts_with('-') => Err("is negative"),
        Err(_) => Err("is not a whole number"),
    }
}

/// The text form.
impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# shuffle matrix of {} nodes, bytes; a row per sender", self.nodes)?;
        for from in 0..self.nodes {
            let row: Vec<String> = self.row(from).iter().map(ToString::to_string).collect();
            writeln!(f, "{}", row.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_that_was_written_reads_back() {
        let matrix = Matrix::of(3, vec![0, 1500, 200, 900, 0, 800, 800, 200, u32::MAX.into()]);
        assert_eq!(Matrix::parse(&matrix.to_string()), Ok(matrix));
    }

    #[test]
    fn bad_matrices_are_refused_with_their_place() {
        let words = |text| Matrix::parse(text).expect_err("refused").to_string();
        assert!(words("# nothing\n").starts_with("the matrix has no rows"));
        assert!(words("1 2\n3 -4\n").starts_with("line 2, cell 2: \"-4\" is negative"));
        assert!(words("1 2\n\n3 x\n").starts_with("line 3, cell 2: \"x\" is not a whole"));
        assert!(words("1 2\n3\n").starts_with("line 2 has 1 cells, but there are 2 rows"));
        assert!(words("1 4294967296\n1 2\n").contains("more than a message can hold"));
    }

    #[test]
    fn skewness_is_zero_for_equal_messages_and_one_for_a_permutation() {
        assert_eq!(Matrix::of(4, vec![7; 16]).skewness(), 0.0);
        let mut one = Matrix::new(4);
        (0..4).for_each(|from| one.set(from, (from + 1) % 4, 100));
        assert!((one.skewness() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn the_bound_is_that_of_the_most_loaded_link() {
        let mut matrix = Matrix::new(4);
        matrix.set(0, 2, 1000);
        matrix.set(1, 3, 1000);
        matrix.set(0, 0, 99_000);
        let links = Links { rack_hosts: 2, host_bits_per_s: 8e3, rack_bits_per_s: 8e3 };
        assert_eq!(matrix.bound(&links, |bytes| bytes as f64), 2.0);
        let links = Links { rack_bits_per_s: 16e3, ..links };
        assert_eq!(matrix.bound(&links, |bytes| bytes as f64), 1.0);
    }
}
