// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package rows proves of the nodes of an ONNX graph that they keep the rows of a batch apart.
//
// Requests of several models can share one execution only if every row of the result depends on the same row of the inputs and on
// nothing else. Analyze walks a graph once and derives a Fact for every value: a constant, a value whose axis 0 counts rows, or an
// integer vector whose elements are known as products of dimensions (what exporters compute shapes with). The rules are a whitelist:
// an operator without a rule, or one that is used in a way that its rule does not cover, is a Refusal with a reason, and nothing is
// known of its outputs. So what is proved is proved; what is refused may still be harmless.
//
// A tensor may have a multiple of the batch on axis 0: [N,S,H] reshaped to [N*S,H] has S places per row, in the order of the rows.
package rows
