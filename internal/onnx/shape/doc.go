// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package shape infers the shapes of a model's values from those of its inputs, and works out what each operator computes and moves.
//
// Shapes are concrete: the caller gives every input its dimensions. Values that shapes are made of (the outputs of Shape, and what
// Gather, Concat, Mul and the like make of them) are evaluated, so that the Reshape of an exported transformer has its real shape.
// Only small integers and floats are evaluated; weights are never read.
//
// [Compile] resolves names once; [Graph.Infer] then costs well under a microsecond per operator, so that a grid of batch sizes is cheap.
package shape
