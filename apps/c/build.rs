//! Gives the shared library its name for the loader, with the version of its interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Version 0 of the interface: programs of another version are refused by the loader.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libevenfall.so.0");
}
