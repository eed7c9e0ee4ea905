//! The program evenfall, for instruments that measure its processes.

use std::path::PathBuf;

/// The variable that holds the path of the program evenfall when evenfall hands a command over.
const VARIABLE: &str = "EVENFALL";

/// The path of the program evenfall: of the program that handed the command over, else of the
/// program beside this one, else of the program on the PATH.
pub fn program() -> PathBuf {
    if let Some(program) = std::env::var_os(VARIABLE) {
        return program.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    // An example stands in a folder below the programs.
    let folders = own.ancestors().skip(1).take(2);
    let mut beside = folders.map(|folder| folder.join("evenfall"));
    beside.find(|path| path.is_file()).unwrap_or_else(|| "evenfall".into())
}
