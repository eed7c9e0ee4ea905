//! The progress that a person sees while a command works: a line for each stage, and a moving bar.
//!
//! Progress goes to standard error, so that standard output carries only the answer. A terminal
//! shows the present stage as a bar below the finished stages. In a file or a pipe each stage is a
//! plain line, and a long stage writes a line from time to time.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a long stage writes a line where there is no terminal. A log of an hour stays below
/// four hundred lines.
const PLAIN_EVERY: Duration = Duration::from_secs(10);
/// How often the bar moves by itself, so that a person sees that the program is alive.
const TICK: Duration = Duration::from_millis(120);

/// The progress of one command.
pub struct Progress {
    /// Draws on a terminal and nowhere else.
    bar: ProgressBar,
    is_terminal: bool,
    stage: Cell<Instant>,
    /// When the last plain line was written.
    said: Cell<Instant>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Progress on standard error.
    pub fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target =
            if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let now = Instant::now();
        Self { bar, is_terminal, stage: Cell::new(now), said: Cell::new(now) }
    }

    /// Begins a stage, and ends the stage before. `steps` is the number of its steps, where that is
    /// known.
    pub fn stage(&self, words: &str, steps: Option<u64>) {
        self.end_stage();
        self.stage.set(Instant::now());
        self.said.set(Instant::now());
        if !self.is_terminal {
            say(words);
            return;
        }
        let template = match steps {
            Some(_) => "{spinner} {msg} [{bar:30}] {human_pos} of {human_len}",
            None => "{spinner} {msg} {elapsed}",
        };
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.reset();
        self.bar.set_length(steps.unwrap_or(0));
        self.bar.set_message(words.to_owned());
        self.bar.enable_steady_tick(TICK);
    }

    /// Reports that `done` of the stage's steps are done.
    pub fn at(&self, done: u64, steps: u64) {
        self.bar.set_position(done);
        if !self.is_terminal && self.said.get().elapsed() >= PLAIN_EVERY {
            self.said.set(Instant::now());
            say(&format!("  {done} of {steps}"));
        }
    }

    /// Ends the stage. The terminal keeps its line, with the time that it took.
    fn end_stage(&self) {
        let words = self.bar.message();
        if self.is_terminal && !words.is_empty() {
            let took = Duration::from_millis(self.stage.get().elapsed().as_millis() as u64);
            self.bar.println(format!("{words} ({})", humantime::format_duration(took)));
        }
    }

    /// A line between the stages.
    pub fn note(&self, words: &str) {
        if self.is_terminal {
            self.bar.println(words);
        } else {
            say(words);
        }
    }

    /// Ends the progress. The answer follows.
    pub fn end(&self) {
        self.end_stage();
        self.bar.set_message("");
        self.bar.finish_and_clear();
    }
}

/// Writes a line to standard error. When nobody reads it, the command still continues.
fn say(words: &str) {
    writeln!(io::stderr(), "{words}").ok();
}
