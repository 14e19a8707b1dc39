// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package estimator says what a model needs of a GPU without running it (USHER's GK-estimator, section 3.2): its latency l(b, p) per batch and
// share, Creq, Mreq, bandwidth and L2 utilisation, each with an error bound.
//
//	graph -> shapes (internal/onnx/shape) -> kernels (estimator/lower) -> times (estimator/kernel) -> sets running together -> profile
//
// README.md says what each part knows, from which data, and how wrong it is.
package estimator
