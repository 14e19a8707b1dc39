// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch-bench measures the figures of docs/results.md: `core`, the queue alone; `sim`, how fast the simulator is; `proxy`, what
// a call through Conch costs over the same call straight to the server behind it; `live`, goodput over Triton's own best batching on real
// tritonservers; `fidelity`, live conch against the simulator for the same arrivals; `reproduce`, Symphony's results that need no GPU, simulated; `compare`, all disciplines under a matrix of simulated loads; `ablation`, adaptive without each of its rules on loads of that matrix. `results` writes the page from what the others kept in results/.
package main
