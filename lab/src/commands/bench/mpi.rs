//! Runs OpenMPI's `MPI_Alltoallv` beside `evenfall bench shuffle`, with the same matrix, hosts and
//! links.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenfall_campaigns::shuffle::Matrix;
use evenfall_host::interrupt;
use evenfall_host::lab::Lab;
use evenfall_host::process::{Signal, end_with_parent, send};
use serde_json::{Value, json};

/// Time between two looks whether the MPI program has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The results of a peer.
pub struct MpiPeer {
    /// Its name.
    pub name: &'static str,
    /// Median of its rounds.
    pub completion_us: f64,
    /// Processor time per message, median.
    pub cpu_us_per_message: f64,
}

impl MpiPeer {
    pub fn json(&self, throughput_gbps: f64) -> Value {
        json!({
            "name": self.name, "completion_us": self.completion_us,
            "throughput_gbps": throughput_gbps, "cpu_us_per_message": self.cpu_us_per_message,
        })
    }
}

/// A directory that is removed when it is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed is small, and lies in the system's place for temporary
        // files.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs the program over TCP. Where all ranks are on one host, runs it over shared memory too.
pub fn beside(
    program: &Path,
    matrix: &Matrix,
    (rounds, warm_up): (usize, usize),
    pin: bool,
    lab: Option<&Lab>,
) -> Result<Vec<MpiPeer>, String> {
    let dir = std::env::temp_dir().join(format!("evenfall-mpi-{}", std::process::id()));
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(&dir).map_err(failed)?;
    let scratch = Scratch(dir.clone());
    let file = scratch.0.join("matrix");
    fs::write(&file, matrix.to_string()).map_err(failed)?;
    let run = |name, arguments: &[String]| {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1"]);
        command.args(arguments);
        if pin {
            command.args(["--map-by", "core", "--bind-to", "core:overload-allowed"]);
        }
        command.args(["-n", &matrix.nodes().to_string()]);
        command.arg(program).arg(&file);
        command.args([rounds.to_string(), warm_up.to_string()]);
        if let Some(lab) = lab {
            lab.inside(0, &mut command).map_err(|error| error.to_string())?;
        }
        one(name, command)
    };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let Some(lab) = lab else {
        let tcp = words("--mca btl tcp,self --mca btl_tcp_if_include lo");
        return Ok(vec![
            run("openmpi tcp", &tcp)?,
            run("openmpi memory", &words("--mca btl vader,self"))?,
        ]);
    };
    let hosts = scratch.0.join("hosts");
    let agent = scratch.0.join("agent");
    let mut text = String::new();
    for rank in 0..matrix.nodes() {
        let _ = writeln!(text, "{} slots=1", lab.name(rank));
    }
    fs::write(&hosts, text).map_err(failed)?;
    // OpenMPI calls the script as a remote shell, with a host and a command. Each host gets a host
    // name of its own, because OpenMPI would otherwise take all hosts for one.
    let script = "#!/bin/sh\nhost=$1\nshift\nexec ip netns exec \"$host\" unshare --uts \
                  sh -c \"hostname $host; $*\"\n";
    fs::write(&agent, script).map_err(failed)?;
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let mut arguments = words(
        "--mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
         --map-by node --mca plm rsh",
    );
    arguments.extend(["--hostfile".into(), hosts.display().to_string()]);
    arguments.extend(["--mca", "plm_rsh_agent"].map(str::to_owned));
    arguments.push(agent.display().to_string());
    Ok(vec![run("openmpi tcp", &arguments)?])
}

/// Ends the program when this program is asked to end.
fn attend(child: &mut Child) -> Result<(), String> {
    loop {
        match child.try_wait() {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if interrupt::raised() => {
                send(child.id(), Signal::Terminate);
                child.wait().ok();
                return Err("interrupted".into());
            }
            Ok(None) => std::thread::sleep(LOOK),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn one(name: &'static str, mut command: Command) -> Result<MpiPeer, String> {
    end_with_parent(&mut command, Signal::Terminate);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = |error: std::io::Error| {
        format!("mpirun: {error}; install OpenMPI (apt-get install openmpi-bin libopenmpi-dev)")
    };
    let mut child = command.spawn().map_err(missing)?;
    // The program prints one line, or a few lines when it fails. The pipe has room for them, so
    // nothing reads it before the end.
    attend(&mut child)?;
    let output = child.wait_with_output().map_err(missing)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let value: Value = serde_json::from_str(line).unwrap_or_default();
    match (value["completion_us"].as_f64(), value["cpu_us_per_message"].as_f64()) {
        (Some(completion_us), Some(cpu_us_per_message)) => {
            Ok(MpiPeer { name, completion_us, cpu_us_per_message })
        }
        _ => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
