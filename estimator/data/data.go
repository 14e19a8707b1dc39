// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package data

import (
	"embed"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/conch-serving/conch/estimator/kernel"
)

//go:embed kernels.json factors.json uses.json bounds.json
var files embed.FS

// Kernels reads the correction of kernels that were learnt from measurements of all GPU types; it is decoded once.
var Kernels = sync.OnceValues(func() (*kernel.Model, error) {
	text, err := files.ReadFile("kernels.json")
	if err != nil {
		return nil, err
	}
	var m kernel.Model
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("estimator/data/kernels.json: %w", err)
	}
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("estimator/data/kernels.json: %w", err)
	}
	return &m, nil
})

// Factors is factors.json: what was fitted to whole models, by GPU type and runtime.
func Factors() []byte { return read("factors.json") }

// Bounds is bounds.json: how far whole models of measured kernels were off that were left out.
func Bounds() []byte { return read("bounds.json") }

// Uses is uses.json: how much of a GPU a model uses.
func Uses() []byte { return read("uses.json") }

func read(name string) []byte {
	text, err := files.ReadFile(name)
	if err != nil {
		return []byte("{}") // cannot be: it is embedded
	}
	return text
}
