// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/modelcases"
	"github.com/conch-serving/conch/repo"
)

const (
	head = "backend: \"python\"\nmax_batch_size: 8\n"
	in   = "input { name: \"A\" data_type: TYPE_FP32 dims: 4 }\n"
	out  = "output { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n"
)

// The end-to-end tests hold a real server to the same cases.
func TestValidateJudgesAsTritonDoes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, modelcases.Write(dir, slices.Concat(modelcases.Helpers(), modelcases.All())...))
	problems, err := repo.ValidateAll(os.DirFS(dir), repo.Strictness{})
	require.NoError(t, err)
	errs := map[string][]string{}
	for _, p := range problems {
		if name, _, _ := strings.Cut(p.File, "/"); p.Severity == repo.SeverityError {
			errs[name] = append(errs[name], p.Error())
		}
	}
	require.GreaterOrEqual(t, len(modelcases.Refused()), 60)
	for _, c := range modelcases.Refused() {
		require.NotEmpty(t, c.Want, c.Name)
		require.NotEmpty(t, errs[c.Name], "%s: nothing is wrong with it", c.Name)
		require.True(t, strings.HasPrefix(errs[c.Name][0], c.Name+c.Want), "%q does not begin with %q", errs[c.Name][0], c.Name+c.Want)
	}
	require.GreaterOrEqual(t, len(modelcases.Odd()), 30)
	for _, c := range slices.Concat(modelcases.Helpers(), modelcases.Odd()) {
		require.Empty(t, errs[c.Name], c.Name)
	}
}

// A field that a newer Triton may have is one that this one refuses.
func TestNewerFieldsAreAnErrorUnlessTheyAreWanted(t *testing.T) {
	fsys := fstest.MapFS{"m/config.pbtxt": {Data: []byte(head + in + out + "novelty: 3\n")}, "m/1/model.py": {}}
	strict := repo.Validate(fsys, "m", repo.Strictness{})
	require.Equal(t, []repo.Problem{{Severity: repo.SeverityError, File: "m/config.pbtxt", Line: 5, Text: "unknown field: novelty"}}, strict)
	lenient := repo.Validate(fsys, "m", repo.Strictness{Newer: true})
	require.Len(t, lenient, 1)
	require.Equal(t, repo.SeverityWarning, lenient[0].Severity)
}

func TestValidateWarnsOfWhatIsNotMeant(t *testing.T) {
	for config, want := range map[string]string{
		head + out:                         "no input is described",
		head + in:                          "no output is described",
		head + in + in + out:               "m/config.pbtxt:4: input \"A\" is described twice",
		"max_batch_size: 8\n" + in + out:   "", // model.py tells the backend
		"backend: \"python\"\n" + in + out: "max_batch_size is missing",
		head + in + out + "novelty: 3\n":   "m/config.pbtxt:5: unknown field: novelty",
		head + in + out + "parameters { key: \"slo_ms\" value { string_value: \"soon\" } }\n": "m/config.pbtxt:5: parameter slo_ms",
		head + in + out + "default_model_filename: \"other.py\"\n":                            "",
		"platform: \"ensemble\"\nmax_batch_size: 8\nensemble_scheduling { step { model_name: \"x\" input_map { key: \"A\" value: \"A\" } output_map { key: \"B\" value: \"B\" } } }\n" + in + out: "m/config.pbtxt:3: step 1 of the ensemble calls model \"x\"",
	} {
		fsys := fstest.MapFS{"m/config.pbtxt": {Data: []byte(config)}, "m/1/model.py": {}, "m/1/other.py": {}}
		problems, err := repo.ValidateAll(fsys, repo.Strictness{Newer: true})
		require.NoError(t, err)
		if want == "" {
			require.Empty(t, problems)
			continue
		}
		require.Len(t, problems, 1, fmt.Sprint(problems))
		require.Contains(t, problems[0].Error(), want)
	}
}

func TestAGoodModelHasNoProblem(t *testing.T) {
	fsys := fstest.MapFS{"m/config.pbtxt": {Data: []byte(head + in + out)}, "m/1/model.py": {}}
	require.Empty(t, repo.Validate(fsys, "m", repo.Strictness{}))
}

// Triton serves a version 0, and passes over numbers that begin with a 0.
func TestVersionZeroIsAVersion(t *testing.T) {
	config := &fstest.MapFile{Data: []byte(head + in + out + "instance_group { kind: KIND_CPU }\n")}
	require.Empty(t, repo.Validate(fstest.MapFS{"m/config.pbtxt": config, "m/0/model.py": {}}, "m", repo.Strictness{}))
	require.NotEmpty(t, repo.Validate(fstest.MapFS{"m/config.pbtxt": config, "m/01/model.py": {}}, "m", repo.Strictness{}))
}

// What a comment orders the formatter to leave alone is validated, managed and found like the rest.
func TestOrdersToTheFormatterHideNothing(t *testing.T) {
	const warmup = "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"A\" value { data_type: TYPE_INT32 dims: 4 zero_data: true } } }\n"
	for name, config := range map[string]string{
		"a part":         head + in + out + "# txtpbfmt: off\n" + warmup + "dynamic_batching { max_queue_delay_microseconds: 50 }\n# txtpbfmt: on\n",
		"up to the end":  head + in + out + "# txtpbfmt: off\n" + warmup + "dynamic_batching { max_queue_delay_microseconds: 50 }\n",
		"all":            "# txtpbfmt: off\n" + head + in + out + warmup + "dynamic_batching { max_queue_delay_microseconds: 50 }\n# txtpbfmt: on\n",
		"sorted by name": "# txtpbfmt: sort_fields_by_field_name\n" + head + in + out + warmup + "dynamic_batching { max_queue_delay_microseconds: 50 }\n",
	} {
		fsys := fstest.MapFS{"m/config.pbtxt": {Data: []byte(config)}, "m/1/model.py": {}}
		problems := repo.Validate(fsys, "m", repo.Strictness{})
		require.Len(t, problems, 1, "%s: %v", name, problems)
		line := strings.Count(config[:strings.Index(config, "model_warmup")], "\n") + 1
		require.Equal(t, fmt.Sprintf("m/config.pbtxt:%d: model_warmup \"w\": input \"A\" is TYPE_INT32, and the model's is TYPE_FP32", line), problems[0].Error(), name)
		managed, err := repo.Manage([]byte(config))
		require.NoError(t, err, name)
		require.NotContains(t, string(managed), "max_queue_delay_microseconds", name)
		require.Contains(t, string(managed), "# txtpbfmt: ", "%s: the comment stays", name)
	}
}
