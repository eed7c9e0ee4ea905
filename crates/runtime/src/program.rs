//! The frame of a program of evenfall: its arguments, its output, its exit code.
//!
//! A program writes `#[macro_use] extern crate evenfall_runtime;`, and [`crate::say!`] and
//! [`crate::aside!`] where others write `println!` and `eprintln!`. Text for standard error that
//! cannot be written is dropped. When standard output is closed, [`crate::say!`] ends the command.

use std::fmt::{self, Arguments};
use std::io::{ErrorKind, Result, Write, stderr, stdout};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use evenfall_host::interrupt;

use crate::causes::with_causes;

/// Prints a part of a line beside the result. A text that cannot be written is dropped.
#[macro_export]
macro_rules! aside_part {
    ($($words:tt)*) => { $crate::program::aside(format_args!($($words)*)) };
}
/// Prints a line beside the result: notes, warnings, progress. One that cannot be written is
/// dropped.
#[macro_export]
macro_rules! aside {
    ($($words:tt)*) => {
        $crate::program::aside(format_args!("{}\n", format_args!($($words)*)))
    };
}
/// Prints a part of a line of the result. The command ends when standard output is closed.
#[macro_export]
macro_rules! say_part {
    ($($words:tt)*) => { $crate::program::out(format_args!($($words)*)) };
}
/// Prints a line of the result. The command ends when standard output is closed.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::program::out(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// The end of a command: success, or an error for people.
pub type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

/// A signal asked the program to stop before it was done. The partial result has been printed.
#[derive(Debug, thiserror::Error)]
#[error("stopped by signal {0}")]
pub struct Stopped(pub u8);

impl Stopped {
    /// The end of a command that a signal has asked to stop; `None` without a signal.
    pub fn by_signal() -> Option<Self> {
        interrupt::signal().map(Self)
    }

    /// The exit code by which shells report a signal.
    fn exit_code(&self) -> u8 {
        128 + self.0
    }
}

/// How often a command whose threads are in the midst of long work looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// Runs a command whose work takes seconds and cannot look at a flag, such as a sort of millions of
/// keys. SIGINT and SIGTERM end the process at once, with the exit code of the signal. `before_end`
/// is then called first, for what must not be left. The command must be able to end anywhere.
///
/// # Errors
/// Those of the command, and [`Stopped`] in place of what failed because of a signal.
pub fn run_until_signal(
    before_end: impl FnOnce() + Send + 'static,
    command: impl FnOnce() -> Outcome,
) -> Outcome {
    interrupt::install()?;
    let watch = move || {
        let stopped = loop {
            match Stopped::by_signal() {
                Some(stopped) => break stopped,
                None => thread::sleep(LOOK),
            }
        };
        before_end();
        std::process::exit(stopped.exit_code().into())
    };
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    command().map_err(|error| match Stopped::by_signal() {
        Some(stopped) => stopped.into(),
        None => error,
    })
}

/// Standard output is closed. This value is thrown as a panic, so that it passes through every
/// library between the command and its output, and `main` then ends the program.
pub struct Unwritten(pub std::io::Error);

/// Ends the command, because its result cannot be written.
pub fn unwritten(error: std::io::Error) -> ! {
    std::panic::panic_any(Unwritten(error))
}

/// Prints a part of the result.
pub fn out(words: Arguments<'_>) {
    stdout().lock().write_fmt(words).unwrap_or_else(|error| unwritten(error));
}

/// Prints a text that may be lost. The process continues when nobody takes the text.
pub fn offer(words: Arguments<'_>) {
    stdout().lock().write_fmt(words).ok();
}

/// Returns when all printed text has been written.
pub fn flush() {
    stdout().flush().unwrap_or_else(|error| unwritten(error));
}

/// Prints a text beside the result, if it can be written.
pub fn aside(words: Arguments<'_>) {
    stderr().lock().write_fmt(words).ok();
}

/// Standard output for text that is written piece by piece. See [`Unwritten`].
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match stdout().write(bytes) {
            Err(error) if error.kind() != ErrorKind::Interrupted => unwritten(error),
            other => other,
        }
    }

    fn flush(&mut self) -> Result<()> {
        flush();
        Ok(())
    }
}

/// A number with its noun, in the singular or the plural: `1 file`, `3 files`.
pub fn counted(number: usize, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ => format!("{number} {thing}s"),
    }
}

/// Parses the arguments and runs the command. When it returns, all printed text is written.
fn run<P: clap::Parser>(
    name: &str,
    describe: fn(clap::Command) -> clap::Command,
    command: fn(P) -> Outcome,
) -> ExitCode {
    let parsed = describe(P::command()).try_get_matches();
    let arguments = match parsed.and_then(|mut matches| P::from_arg_matches_mut(&mut matches)) {
        Ok(arguments) => arguments,
        // Help goes to standard output, and mistakes go to standard error.
        Err(words) if words.use_stderr() => {
            words.print().ok();
            return ExitCode::from(words.exit_code() as u8);
        }
        Err(help) => {
            help.print().unwrap_or_else(|error| unwritten(error));
            flush();
            return ExitCode::SUCCESS;
        }
    };
    let notes = match crate::notes::start() {
        Ok(notes) => notes,
        Err(error) => return failure(name, &with_causes(&error)),
    };
    let outcome = command(arguments);
    // The notes end first, so that the last words are those of the command.
    drop(notes);
    match outcome {
        Ok(()) => {
            flush();
            ExitCode::SUCCESS
        }
        Err(error) => match error.downcast_ref() {
            Some(stopped) => ExitCode::from(Stopped::exit_code(stopped)),
            None => failure(name, &with_causes(&*error)),
        },
    }
}

fn failure(name: &str, error: &(impl fmt::Display + ?Sized)) -> ExitCode {
    aside(format_args!("{name}: {error}\n"));
    ExitCode::FAILURE
}

/// Runs a program: parses its arguments, runs the command, and returns the exit code. `describe`
/// may add to the help of the commands.
pub fn main<P: clap::Parser>(
    name: &str,
    describe: fn(clap::Command) -> clap::Command,
    command: fn(P) -> Outcome,
) -> ExitCode {
    let standard = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Unwritten>() {
            standard(panic);
        }
    }));
    // The panic unwinds, so that processes and threads beside the command are ended.
    std::panic::catch_unwind(|| run(name, describe, command)).unwrap_or_else(|panic| {
        match panic.downcast_ref() {
            // The reader of the output has seen enough, as with `| head`.
            Some(Unwritten(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Some(Unwritten(error)) => failure(name, &format_args!("standard output: {error}")),
            None => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessError, SettingsError};

    /// An error that leaves its cause to the chain.
    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the log of the run")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn every_cause_is_printed_once() {
        let error = Outer(std::io::Error::other("the disk is full"));
        assert_eq!(with_causes(&error), "the log of the run: the disk is full");
        let error = ProcessError::from(SettingsError::new("run.key_file: k: not there"));
        assert_eq!(with_causes(&error), "run.key_file: k: not there");
    }
}
