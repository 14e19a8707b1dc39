// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package data is the estimator's shipped coefficients, fitted by estimator/train and estimator/fit from the measurements beside them. README.md
// says where each measurement comes from and under which licence.
package data
