//! `evenfall key`: makes the shared key of a run, the keys of its nodes, and the keys by which its
//! roots sign.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use evenfall_core::MasterKey;
use evenfall_multicast_service::settings::{RoleName, Settings};
use evenfall_runtime::settings::{read_key, read_node_key};

use crate::Outcome;
use crate::services::{self, CONFIG};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// The mode of a key: only its owner reads it.
pub const OWNER_READS: u32 = 0o600;
/// The mode of a file without secrets.
pub const EVERYBODY_READS: u32 = 0o644;

/// Arguments of `evenfall key`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Write a new random key, which only its owner can read. An existing file stays.
    New {
        /// The file of the key. By default it is evenfall.key for a shared key, which
        /// `run.key_file` names, and signing.key for a signing key, which `trust.signing_key_file`
        /// names.
        file: Option<PathBuf>,
        /// Make a pair of keys by which a root signs the feed. The file has the secret half.
        /// FILE.pub and standard output have the public half, which belongs in `trust.signers`.
        #[arg(long)]
        signing: bool,
        /// Make the master key of the roots (`run.master_key_file`), and a key for every other node
        /// of the settings (`run.node_key_file`). Files that are there stay, so that a node that is
        /// added later gets its key out of the same master key.
        #[arg(long, conflicts_with_all = ["signing", "file"])]
        nodes: bool,
        /// The settings file that names the nodes.
        #[arg(long, default_value = CONFIG, requires = "nodes")]
        config: PathBuf,
    },
}

/// The error about a file that a command would have to replace.
pub fn is_there_already(path: &Path) -> String {
    format!("{}: is there already, and stays; name another file", path.display())
}

/// Writes a file that is not there yet.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let named = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => is_there_already(path),
        _ => format!("{}: {error}", path.display()),
    };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(named)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Half a file would be taken for a whole one.
        let _ = std::fs::remove_file(path);
        named(error)
    })
}

/// Writes a random key in hexadecimal digits. Returns its bytes.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn make_key_file(path: &Path) -> Result<[u8; KEY_BYTES], String> {
    let mut key = [0; KEY_BYTES];
    evenfall_host::random::fill(&mut key).map_err(|error| format!("a random key: {error}"))?;
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    write_new(path, format!("{digits}\n").as_bytes(), OWNER_READS)?;
    Ok(key)
}

/// Writes a pair of signing keys, the public half beside the secret one. Returns the public half as
/// `trust.signers` has it.
///
/// # Errors
/// A file is there, or cannot be written; this build lacks signatures.
#[cfg(feature = "signing")]
pub fn make_signing_key_file(path: &Path) -> Result<String, String> {
    use evenfall_multicast_service::settings::public_text;
    use evenfall_multicast_service::signing::SigningKey;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".pub");
    let beside = PathBuf::from(beside);
    if beside.exists() {
        // A secret half without its public half would be in the way of the next try.
        return Err(is_there_already(&beside));
    }
    let secret = make_key_file(path)?;
    let public = public_text(&SigningKey::new(&secret).public_key());
    write_new(&beside, format!("{public}\n").as_bytes(), EVERYBODY_READS)?;
    Ok(public)
}

/// Says how to get a build with signatures.
#[cfg(not(feature = "signing"))]
pub fn make_signing_key_file(_: &Path) -> Result<String, String> {
    Err(crate::missing::words("signatures", "signing"))
}

/// Writes the master key, unless it is there, and the missing keys of the other nodes.
fn make_node_keys(config: &Path) -> Outcome {
    let document = services::load(config, &[])?;
    let settings = Settings::of(&document)?;
    let (Some(master), true) =
        (&settings.run.master_key_file, settings.run.node_key_file.is_some())
    else {
        let shown = config.display();
        let why = format!(
            "{shown}: name the files in [run], such as master_key_file = \"master.key\" and \
             node_key_file = \"keys/{{name}}.key\""
        );
        return Err(why.into());
    };
    if !master.exists() {
        make_key_file(master)?;
        say!("{} is written; copy it to the hosts of root and standbys alone", master.display());
    }
    let key = MasterKey::new(*read_key(master)?.secret());
    let is_root = |role| matches!(role, RoleName::Root | RoleName::Standby | RoleName::Other);
    for node in settings.nodes.iter().filter(|node| !is_root(node.role)) {
        let Some(file) = settings.run.node_key_path(&node.name) else { continue };
        let (wanted, shown, name) = (key.node(node.id), file.display(), &node.name);
        if !file.exists() {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            directory.map_or(Ok(()), std::fs::create_dir_all)?;
            write_new(&file, wanted.to_text().as_bytes(), OWNER_READS)?;
            say!("{shown} is written; copy it to the host of {name} alone");
        } else if read_node_key(&file)? != wanted {
            // A file of another node, or of another master key, would shut its node out.
            let master = master.display();
            let why = format!("{shown} is not the key of {name} under {master}; remove it");
            return Err(why.into());
        }
    }
    Ok(())
}

pub fn main(args: &Args) -> Outcome {
    let Command::New { file, signing, nodes, config } = &args.command;
    if *nodes {
        return make_node_keys(config);
    }
    if *signing {
        let file = file.as_deref().unwrap_or("signing.key".as_ref());
        let public = make_signing_key_file(file)?;
        let shown = file.display();
        say!("{public}");
        aside!(
            "{shown} is written. The file stays on the host of its root. Put the line above into \
             trust.signers of every receiver"
        );
        return Ok(());
    }
    let file = file.as_deref().unwrap_or("evenfall.key".as_ref());
    make_key_file(file)?;
    say!(
        "{} is written. Copy the key of a run to every host of the run, and the key of a \
         participant to its gateway and to that participant alone, with mode 600",
        file.display()
    );
    Ok(())
}
