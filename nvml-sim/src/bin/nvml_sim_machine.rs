//! Writes the machine file of a named model to standard output.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use nvml_sim::models;

/// Writes the machine file of a named model for nvml-sim.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example: nvml-sim-machine --model dgx-h100 --seed h100-1 > h100-1.json"
)]
struct Arguments {
    /// The machine: dgx-a100, dgx-h100, dgx-h200, l40s-4, l40s-8, a100-pcie-8 or a30-4.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(models::MODELS))]
    model: String,
    /// A name that the devices' UUIDs are made from: another machine, another seed.
    #[arg(long)]
    seed: String,
}

fn main() -> ExitCode {
    let Arguments { model, seed } = Arguments::parse();
    let machine = models::machine(&model, &seed).expect("the parser lets only known models pass");
    match std::io::stdout().write_all(machine.to_json().as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvml-sim-machine: the machine can't be written to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}
