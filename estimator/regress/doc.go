// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package regress fits and evaluates small regressors: lasso, Gaussian kernel ridge and gradient-boosted trees, and a stack of the three
// (USHER, section 3.2). A fit is a function of its samples, its options and a seed; a fitted [Stack] is plain data that JSON carries, and
// predicts without allocating.
//
// What is predicted is a logarithm wherever the estimator uses it, so that errors are relative.
package regress
