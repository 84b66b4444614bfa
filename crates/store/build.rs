//! The migrations are built into the program. `sqlx::migrate!` alone would not see a new one.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
