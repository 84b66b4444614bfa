//! A new migration is a reason to build again; `sqlx::migrate!` alone sees only those it knew.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
