// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
)

func TestManageKeepsWhatItDoesNotChange(t *testing.T) {
	inputs, err := filepath.Glob("testdata/manage/*.in.pbtxt")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for _, path := range inputs {
		t.Run(filepath.Base(path), func(t *testing.T) {
			before, err := os.ReadFile(path)
			require.NoError(t, err)
			after, err := repo.Manage(before)
			require.NoError(t, err)
			golden := strings.Replace(path, ".in.", ".out.", 1)
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(golden, after, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(after))
			again, err := repo.Manage(after)
			require.NoError(t, err)
			require.Equal(t, string(after), string(again), "a managed config needs no edit")
		})
	}
}

func TestASyntaxErrorHasItsLine(t *testing.T) {
	for text, line := range map[string]int{
		"name: \"m\"\nmax_batch_size: many\n": 2,
		"name: \"m\"\n\ninput {\n":            3,
		"name: \"m\"\nname: \"n\"\n":          2,
		"input { data_type: TYPE_FP3 }":       1,
	} {
		_, err := repo.ReadConfig([]byte(text))
		var syntax *repo.SyntaxError
		require.ErrorAs(t, err, &syntax, text)
		require.Equal(t, line, syntax.Line, "%s: %v", text, err)
		_, err = repo.Manage([]byte(text))
		require.ErrorAs(t, err, &syntax, text)
	}
}

func TestAFormatterDirectiveCannotChangeTheMeaning(t *testing.T) {
	// The formatter that edits for us would drop one of the equal dimensions.
	text := []byte("# txtpbfmt: remove_duplicate_values_for_repeated_fields\nname: \"m\"\ninput { name: \"A\" data_type: TYPE_FP32 dims: 8 dims: 8 }\n")
	after, err := repo.Manage(text)
	if err != nil {
		require.ErrorContains(t, err, "by hand")
		return
	}
	c, err := repo.ReadConfig(after)
	require.NoError(t, err)
	require.Equal(t, []int64{8, 8}, c.GetInput()[0].GetDims())
}

func TestSLO(t *testing.T) {
	read := func(text string) (time.Duration, bool, error) {
		c, err := repo.ReadConfig([]byte(text))
		require.NoError(t, err)
		return repo.SLO(c)
	}
	slo, ok, err := read(`parameters { key: "slo_ms" value { string_value: "12.5" } }`)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 12500*time.Microsecond, slo)
	_, ok, err = read(`name: "m"`)
	require.NoError(t, err)
	require.False(t, ok)
	for _, bad := range []string{"", "fast", "0", "-3", "NaN", "1e300"} {
		_, ok, err = read(`parameters { key: "slo_ms" value { string_value: "` + bad + `" } }`)
		require.ErrorContains(t, err, "slo_ms", bad)
		require.False(t, ok)
	}
}

func TestBatchable(t *testing.T) {
	tensors := `input { name: "A" data_type: TYPE_FP32 dims: 4 } output { name: "B" data_type: TYPE_FP32 dims: 4 } `
	for text, reason := range map[string]string{
		`max_batch_size: 8 ` + tensors: "",
		`max_batch_size: 8 input { name: "A" data_type: TYPE_STRING dims: -1 optional: true }`:            "",
		`max_batch_size: 8 dynamic_batching {}`:                                                           "",
		tensors:                                                                                           "max_batch_size",
		`max_batch_size: 8 sequence_batching {}`:                                                          "sequence",
		`max_batch_size: 8 platform: "ensemble" ensemble_scheduling {}`:                                   "ensemble",
		`max_batch_size: 8 model_transaction_policy { decoupled: true }`:                                  "decoupled",
		`max_batch_size: 8 input { name: "A" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }`:    "ragged",
		`max_batch_size: 8 input { name: "A" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true }`:       "shape tensor",
		`max_batch_size: 8 output { name: "A" data_type: TYPE_INT32 dims: 2 is_shape_tensor: true }`:      "shape tensor",
		`max_batch_size: 8 input { name: "A" data_type: TYPE_INT32 dims: 2 is_non_linear_format_io: 1 }`:  "non-linear",
		`max_batch_size: 8 batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" }`:                    "batch_input",
		`max_batch_size: 8 response_cache { enable: true }`:                                               "cache",
		`max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 }`:             "queue policy",
		`max_batch_size: 8 dynamic_batching { preserve_ordering: true }`:                                  "queue policy",
		`max_batch_size: 8 dynamic_batching { default_queue_policy { max_queue_size: 9 } }`:               "queue policy",
		`max_batch_size: 8 dynamic_batching { default_queue_policy { default_timeout_microseconds: 9 } }`: "queue policy",
		`max_batch_size: 8 dynamic_batching { default_queue_policy { allow_timeout_override: true } }`:    "",
	} {
		c, err := repo.ReadConfig([]byte(text))
		require.NoError(t, err, text)
		ok, why := repo.Batchable(c)
		require.Equal(t, reason == "", ok, text)
		require.Contains(t, why, reason, text)
	}
}

func TestServedVersions(t *testing.T) {
	for text, want := range map[string][]int64{
		``:                              {10},
		`version_policy { latest { } }`: {}, // that is num_versions: 0
		`version_policy { all { } }`:    {1, 3, 10},
		`version_policy { latest { num_versions: 2 } }`:    {3, 10},
		`version_policy { latest { num_versions: 9 } }`:    {1, 3, 10},
		`version_policy { specific { versions: [3, 7] } }`: {3},
	} {
		c, err := repo.ReadConfig([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, repo.ServedVersions(c, []int64{10, 1, 3}), text)
	}
}

// managed takes out what Manage takes out: dynamic batching with its queue policies,
// where Conch forms the batches in its place and no order is to be kept.
func managed(c *tritonpb.ModelConfig) *tritonpb.ModelConfig {
	d := c.GetDynamicBatching()
	if d == nil || triton.BatchesAtOnce(d) {
		return c
	}
	empty := proto.CloneOf(c)
	empty.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{}}
	if ok, _ := repo.Batchable(empty); ok && !d.GetPreserveOrdering() {
		return empty
	}
	return c
}

// Whatever a config says, managing it empties dynamic batching and changes nothing
// else, and does so once.
func TestManageChangesNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs(t)
		text, err := prototext.MarshalOptions{Multiline: rapid.Bool().Draw(t, "multiline")}.Marshal(c)
		require.NoError(t, err)
		for range rapid.IntRange(0, 3).Draw(t, "comments") {
			lines := strings.SplitAfter(string(text), "\n")
			at := rapid.IntRange(0, len(lines)-1).Draw(t, "at")
			lines[at] = "# note " + rapid.StringMatching(`[a-z{}:"]{0,8}`).Draw(t, "note") + "\n" + lines[at]
			text = []byte(strings.Join(lines, ""))
		}
		after, err := repo.Manage(text)
		require.NoError(t, err, string(text))
		got, err := repo.ReadConfig(after)
		require.NoError(t, err)
		require.True(t, proto.Equal(managed(c), got), "%s\nbecame\n%s", text, after)
		require.Equal(t, strings.Count(string(text), "# note "), strings.Count(string(after), "# note "), "comments outside the block stay:\n%s\nbecame\n%s", text, after)
		require.Contains(t, string(after), "max_batch_size")
	})
}

// configs draws configurations; dynamic batching that is taken out is one line, so that no
// comment falls inside it.
func configs(t *rapid.T) *tritonpb.ModelConfig {
	name := rapid.StringMatching(`[a-zA-Z_#"'\\ ]{0,8}`)
	c := &tritonpb.ModelConfig{
		Name: name.Draw(t, "name"), Backend: "python", MaxBatchSize: rapid.Int32Range(0, 64).Draw(t, "max batch"),
		Parameters: map[string]*tritonpb.ModelParameter{},
	}
	for range rapid.IntRange(0, 3).Draw(t, "inputs") {
		c.Input = append(c.Input, &tritonpb.ModelInput{
			Name: name.Draw(t, "input"), DataType: tritonpb.DataType(rapid.Int32Range(0, 14).Draw(t, "type")),
			Dims: rapid.SliceOfN(rapid.Int64Range(-1, 8), 0, 4).Draw(t, "dims"),
		})
	}
	for range rapid.IntRange(0, 2).Draw(t, "parameters") {
		c.Parameters[name.Draw(t, "key")] = &tritonpb.ModelParameter{StringValue: rapid.String().Filter(func(s string) bool { return !strings.Contains(s, "# note ") }).Draw(t, "value")}
	}
	if rapid.Bool().Draw(t, "dynamic") {
		d := &tritonpb.ModelDynamicBatching{PreserveOrdering: rapid.Bool().Draw(t, "ordered")}
		c.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: d}
	}
	return c
}

func FuzzManage(f *testing.F) {
	inputs, err := filepath.Glob("testdata/manage/*.in.pbtxt")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range inputs {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("# txtpbfmt: disable\nname: 'm' dynamic_batching {}"))
	f.Add([]byte("# txtpbfmt: disable\nname: 'm' max_batch_size: 2 dynamic_batching {}"))
	f.Add([]byte("# txtpbfmt: off\nname: 'm'\n# txtpbfmt: on\nmax_batch_size: 2 dynamic_batching {}"))
	f.Add([]byte("# txtpbfmt: off\nmax_batch_size: 2 dynamic_batching {}\n# txtpbfmt: on\n"))
	f.Add([]byte("max_batch_size: 2 dynamic_batching { preserve_ordering: true }"))
	f.Add([]byte("dynamic_batching <>; dims: [1,]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		before, err := repo.ReadConfig(text)
		after, managing := repo.Manage(text)
		var syntax *repo.SyntaxError
		if err != nil {
			if managing == nil {
				t.Fatalf("unreadable, and managed to %q", after)
			}
			if !errors.As(err, &syntax) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if managing != nil {
			if !errors.As(managing, &syntax) {
				t.Fatalf("%T: %v", managing, managing)
			}
			return
		}
		got, err := repo.ReadConfig(after)
		if err != nil {
			t.Fatalf("%q became %q: %v", text, after, err)
		}
		if !proto.Equal(managed(before), got) {
			t.Fatalf("%q became %q", text, after)
		}
	})
}
