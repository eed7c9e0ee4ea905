//! A shuffle as a matrix: the bytes from each sender to each receiver, and the least time that they
//! take.
//!
//! People and other programs can write the text form. The text form has a row for each sender and a
//! cell for each receiver, separated by blanks. A cell is a whole number of bytes, and `#` starts a
//! comment.
//!
//! ```text
//! # 3 nodes
//! 0   1500 200
//! 900 0    800
//! 800 200  0
//! ```

use core::fmt;

use evenfall_core::math;

/// Nodes that a matrix may have. Ranks are 16 bits on the wire.
pub const NODES_MAX: usize = 1 << 16;
/// Bytes that one message may have. Offsets are 32 bits on the wire.
pub const MESSAGE_BYTES_MAX: u64 = u32::MAX as u64;

/// Sizes of the messages of one shuffle: `cells[sender * nodes + receiver]`, in bytes. The cells of
/// the diagonal stay on their node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    nodes: usize,
    cells: Vec<u64>,
}

/// What is wrong with a matrix. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MatrixError {
    /// The text has no row.
    Empty,
    /// A cell is not a whole number of bytes.
    Cell {
        /// Line of the text.
        line: usize,
        /// Place of the cell in its row.
        column: usize,
        /// Text of the cell.
        text: String,
        /// Why the text is no number of bytes.
        what: &'static str,
    },
    /// A row does not have as many cells as the matrix has rows.
    NotSquare {
        /// Line of the text.
        line: usize,
        /// Cells of the row.
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

/// The links of a fat tree of racks, which bound a shuffle by [`Matrix::bound`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Hosts below one switch. Nodes are placed in order of their numbers.
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
    /// When the number of cells is not `nodes * nodes`.
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

    /// The messages of one sender, with the message to itself.
    pub fn row(&self, from: usize) -> &[u64] {
        &self.cells[from * self.nodes..(from + 1) * self.nodes]
    }

    /// Bytes of all cells, with the diagonal.
    pub fn total(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// Bytes that a node sends to others.
    pub fn sent_by(&self, node: usize) -> u64 {
        self.row(node).iter().sum::<u64>() - self.cell(node, node)
    }

    /// Message skewness: the standard deviation of the cells, divided by the largest standard
    /// deviation of any matrix with the same size and sum (section 5 of the thesis). The skewness
    /// is 0 when all cells are equal, and 1 when every node sends all its bytes to one other node.
    pub fn skewness(&self) -> f64 {
        let (n, total) = (self.nodes as f64, self.total() as f64);
        if self.nodes < 2 || total == 0.0 {
            return 0.0;
        }
        let mean = total / (n * n);
        let square = self.cells.iter().map(|&c| math::square(c as f64 / mean - 1.0)).sum::<f64>();
        (square / (n * n)).sqrt() / (n - 1.0).sqrt()
    }

    /// The least time of the shuffle in seconds: the time of the most loaded link of a host or a
    /// rack (section 6.3). `frame` gives the bytes that a message of a given length takes on a
    /// link.
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
    /// [`MatrixError`] with the line of the text.
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
