// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package calibration executes orders to measure: a type of device on micro-models, which gives a bundle for estimates, or one model on its grid of
// batches and shares, which gives its calibrated profile.
//
// Both run in a scratch partition: a server of its own, at the share that is measured, which is in no plan and serves no client. It lives as long as the
// order; one order runs at a time. What an order may cost others is bounded by its limit in time and by the part of the time in which anything executes.
package calibration
