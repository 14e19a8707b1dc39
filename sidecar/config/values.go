// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration written as Go writes them: 25ms, 1.5s, 2m.
type Duration time.Duration

// Std is d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String formats d as it is written in the file.
func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalText reads a duration with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration; write a number with its unit, as in 25ms or 1.5s", text)
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written plainly or with a unit: 64MiB, 80GB.
type Size uint64

// String formats s with the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range []struct {
		suffix string
		bytes  Size
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if s >= u.bytes && s%u.bytes == 0 {
			return strconv.FormatUint(uint64(s/u.bytes), 10) + u.suffix
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// sizeUnits lists longer suffixes before the shorter ones that end them.
func sizeUnits() []struct {
	suffix string
	bytes  float64
} {
	return []struct {
		suffix string
		bytes  float64
	}{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1},
	}
}

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	number, factor := strings.TrimSpace(string(text)), 1.0
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || v < 0 || v*factor >= 1<<63 {
		return fmt.Errorf("%q is not a size; write bytes or a number with its unit, as in 512MiB or 80GB", text)
	}
	*s = Size(math.Round(v * factor))
	return nil
}
