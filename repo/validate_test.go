// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/repo"
)

const (
	head = "backend: \"python\"\nmax_batch_size: 8\n"
	in   = "input { name: \"A\" data_type: TYPE_FP32 dims: 4 }\n"
	out  = "output { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n"
)

// The driver's tests try the same models on a real server.
func TestValidateSaysWhereTritonWouldRefuse(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/refused.txtar")
	require.NoError(t, err)
	cases, wants := map[string]fstest.MapFS{}, map[string]string{}
	for _, f := range archive.Files {
		name, path, _ := strings.Cut(f.Name, "/")
		if path == "want" {
			wants[name], cases[name] = strings.TrimSpace(string(f.Data)), fstest.MapFS{}
			continue
		}
		cases[name][path] = &fstest.MapFile{Data: f.Data}
	}
	require.NotEmpty(t, cases)
	for name, fsys := range cases {
		t.Run(name, func(t *testing.T) {
			problems := repo.Validate(fsys, "m")
			require.NotEmpty(t, problems)
			require.Equal(t, repo.SeverityError, problems[0].Severity)
			require.True(t, strings.HasPrefix(problems[0].Error(), wants[name]), "%q does not begin with %q", problems[0].Error(), wants[name])
		})
	}
}

func TestValidateWarnsOfWhatIsNotMeant(t *testing.T) {
	for config, want := range map[string]string{
		head + out:                         "no input is described",
		head + in:                          "no output is described",
		head + in + in + out:               "m/config.pbtxt:4: input \"A\" is described twice",
		"max_batch_size: 8\n" + in + out:   "", // model.py tells the backend
		"backend: \"python\"\n" + in + out: "max_batch_size is missing",
		head + in + out + "novelty: 3\n":   "m/config.pbtxt:5: unknown field: novelty",
		head + in + out + "parameters { key: \"slo_ms\" value { string_value: \"soon\" } }\n":                        "m/config.pbtxt:5: parameter slo_ms",
		head + in + out + "default_model_filename: \"other.py\"\n":                                                   "",
		"platform: \"ensemble\"\nmax_batch_size: 8\nensemble_scheduling { step { model_name: \"x\" } }\n" + in + out: "m/config.pbtxt:3: step 1 of the ensemble calls model \"x\"",
	} {
		fsys := fstest.MapFS{"m/config.pbtxt": {Data: []byte(config)}, "m/1/model.py": {}, "m/1/other.py": {}}
		problems, err := repo.ValidateAll(fsys)
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
	require.Empty(t, repo.Validate(fsys, "m"))
}

// Triton serves a version 0, and passes over numbers that begin with a 0.
func TestVersionZeroIsAVersion(t *testing.T) {
	config := &fstest.MapFile{Data: []byte(head + in + out + "instance_group { kind: KIND_CPU }\n")}
	require.Empty(t, repo.Validate(fstest.MapFS{"m/config.pbtxt": config, "m/0/model.py": {}}, "m"))
	require.NotEmpty(t, repo.Validate(fstest.MapFS{"m/config.pbtxt": config, "m/01/model.py": {}}, "m"))
}
