// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

//go:embed sheets.csv
var table []byte

// ErrUnknown is the failure of a look-up of a GPU type that the table lacks.
var ErrUnknown = errors.New("unknown GPU type")

// Sheet is what the data sheet of a GPU type says.
type Sheet struct {
	Name         string
	Aliases      []string
	Architecture string
	// SMs are streaming multiprocessors; Cores and Threads are FP32 lanes and resident threads of each.
	SMs, Cores, Threads float64
	// BoostMHz is the boost clock.
	BoostMHz float64
	// FP32, TF32, FP16 and INT8 are peak operations per second, dense; 0 where the GPU has no faster path than FP32.
	FP32, TF32, FP16, INT8 float64
	// Bandwidth is bytes per second of device memory; Memory and L2 are bytes, Watts the board's power limit.
	Bandwidth, Memory, L2, Watts float64
	// Context is the device memory, in bytes, of a process before it loads a model.
	Context float64
	Source  string
}

// All reads the table.
func All() ([]Sheet, error) {
	rows, err := csv.NewReader(bytes.NewReader(table)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("gpu: sheets.csv: %w", err)
	}
	var sheets []Sheet
	for _, row := range rows[1:] {
		v := make([]float64, len(row))
		for i := 3; i < len(row)-1; i++ {
			if v[i], err = strconv.ParseFloat(row[i], 64); err != nil {
				return nil, fmt.Errorf("gpu: sheets.csv: %s, %s: %w", row[0], rows[0][i], err)
			}
		}
		sheets = append(sheets, Sheet{
			Name: row[0], Aliases: strings.Split(row[1], "|"), Architecture: row[2],
			SMs: v[3], Cores: v[4], Threads: v[5], BoostMHz: v[6],
			FP32: v[7] * 1e12, TF32: v[8] * 1e12, FP16: v[9] * 1e12, INT8: v[10] * 1e12,
			Bandwidth: v[11] * 1e9, Memory: v[12] * 1e9, L2: v[13] * 1e6, Watts: v[14], Context: v[15] * 1e6, Source: row[16],
		})
	}
	return sheets, nil
}

// Names are the GPU types of the table.
func Names() []string {
	sheets, err := All()
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range sheets {
		names = append(names, s.Name)
	}
	return names
}

// Find looks a GPU type up by name or alias: case, blanks, dashes and the words NVIDIA, Tesla and GeForce do not matter.
func Find(name string) (Sheet, error) {
	sheets, err := All()
	if err != nil {
		return Sheet{}, err
	}
	for _, s := range sheets {
		if s.Is(name) {
			return s, nil
		}
	}
	return Sheet{}, fmt.Errorf("%w %q; known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Is reports whether the sheet is that of a GPU type, by the rules of [Find].
func (s *Sheet) Is(name string) bool {
	return key(s.Name) == key(name) || slices.ContainsFunc(s.Aliases, func(a string) bool { return a != "" && key(a) == key(name) })
}

// ComputesAs reports whether two GPU types differ in nothing but how much memory they have, so that what was measured on one holds for the other.
func (s *Sheet) ComputesAs(other *Sheet) bool {
	alike := *other
	alike.Name, alike.Aliases, alike.Memory, alike.Context, alike.Source = s.Name, s.Aliases, s.Memory, s.Context, s.Source
	return reflect.DeepEqual(*s, alike)
}

func key(name string) string {
	name = strings.ToLower(name)
	for _, drop := range []string{"nvidia", "tesla", "geforce", " ", "-", "_"} {
		name = strings.ReplaceAll(name, drop, "")
	}
	return name
}
