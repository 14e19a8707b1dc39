// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package merger makes one set of ONNX graphs of several models that share weights: a merge group.
//
// Analyze reads the members at wire level, hashes their weights once, and says what they share and what each way to merge them would
// save; nothing is written. Emit writes the graphs and the config.pbtxt of each part, with a manifest. Verify runs originals and parts
// on generated inputs, whose rows must not mix; a merge that was not verified must never serve.
//
// There are three modes:
//
//   - Backbone, the default and the one that serves: one model, whose batches hold rows of any member. What all members compute alike
//     from the inputs on, the backbone, runs once on all rows; the rest of each, its head, on that member's rows, or for all members as
//     one with weights looked up per row. An input says whose each row is.
//   - SuperOp: two members in one graph. Operators with equal weights run once on both inputs; of operators whose weights are partly
//     equal the common block runs once, and the rest per member, so that no multiplication is done twice.
//   - SuperOpPadded: the same with the super-operator of USHER (OSDI 2025, section 3.4.3): the common submatrix padded with zeros to
//     the full size, and a dense residual per member. A baseline to measure against.
//
// What is equal is equal bit for bit. A Merkle hash over operator, attributes, weights and inputs identifies what a value is a function
// of; equal hashes are shared. A node is shared only if package rows proves that it keeps the rows of a batch apart.
package merger
