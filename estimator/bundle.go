// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/estimator/lower"
)

// Bundle is what a calibration found out about a device: all that an estimate needs, with the error that it had on measurements that were left out.
type Bundle struct {
	// Version is 1.
	Version int           `json:"version"`
	Sheet   gpu.Sheet     `json:"sheet"`
	Runtime lower.Runtime `json:"runtime"`
	Kernels *kernel.Model `json:"kernels"`
	Factors Factors       `json:"factors"`
	Server  string        `json:"server"`
	// Measurements is how many there are; Median and P90 are quantiles of the relative error on micro-models that were left out.
	// Shares is how many measurements with a part of the device there are besides.
	Measurements int     `json:"measurements"`
	Shares       int     `json:"share_measurements,omitempty"`
	Median       float64 `json:"left_out_median"`
	P90          float64 `json:"left_out_p90"`
}

// Write writes the bundle into a file, as a whole or not at all.
func (b *Bundle) Write(path string) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := os.WriteFile(next, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(next, path)
}

// ReadBundle reads a bundle's file.
func ReadBundle(path string) (*Bundle, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var b Bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case b.Version != 1:
		return nil, fmt.Errorf("%s: bundle of version %d; this build reads version 1", path, b.Version)
	case b.Kernels == nil:
		return nil, fmt.Errorf("%s: the bundle has no kernels", path)
	case !b.Factors.Check():
		return nil, fmt.Errorf("%s: the bundle's factors are not usable", path)
	}
	if err := b.Kernels.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &b, nil
}

// Device is the device that the bundle describes.
func (b *Bundle) Device() (Device, error) {
	uses, err := ShippedUses()
	return Device{Sheet: b.Sheet, Kernels: b.Kernels, Runtime: b.Runtime, Factors: b.Factors, Uses: uses}, err
}
