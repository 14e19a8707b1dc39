// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package workload says when requests arrive: generated (Poisson, Gamma, with a constant or a changing rate) or read from traces (counts per
// minute in the Azure Functions format, one arrival per line, or a trace that Conch recorded).
//
// Everything is a [Stream], read one arrival at a time in bounded memory. A generated stream draws from a generator of its own, seeded by
// [Seed] from the run's seed and the model's name, so that adding a model or changing one does not move the others' arrivals.
package workload
