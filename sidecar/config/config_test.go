// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/config"
)

var nobody = config.Environment{UID: 1000, CheckDiscipline: func(discipline string, _ map[string]string, drop string) error {
	if discipline == "lazy" || drop == "lots" {
		return errors.New("is none")
	}
	return nil
}, Getenv: func(name string) string {
	return map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/1000"}[name]
}}

func TestLoadFull(t *testing.T) {
	c, err := config.Load("testdata/full.yaml", nil, nobody)
	require.NoError(t, err)
	require.Equal(t, config.ModeAdvise, c.Mode)
	require.Equal(t, config.Off, c.Listen.Metrics)
	require.Equal(t, 2.5, c.Driver.Stretch)
	require.Equal(t, 3, c.GPUs.Total())
	require.Equal(t, config.Size(80<<30), c.GPUs.List[0].Memory, "from the data sheet")
	require.Equal(t, config.Size(10<<30), c.GPUs.List[1].Memory)
	require.True(t, c.GPUs.List[1].Emulated, "the embedded driver has only emulated GPUs")
	require.Equal(t, map[string]string{"share": "50", "layout": `{"gpu0":["resnet50","bert"]}`}, c.Policy.Parameters)
	require.Equal(t, 1500*time.Millisecond, c.Policy.Deadline.Std())
	r := c.Models["resnet50"]
	require.Equal(t, 25*time.Millisecond, r.SLO.Std())
	require.Equal(t, []string{"gpu0", "gpu2"}, r.GPUs)
	require.Equal(t, 1053*time.Microsecond, r.Profile.Alpha.Std())
	b := c.Models["bert"]
	require.Equal(t, 60*time.Millisecond, b.SLO.Std(), "what a model says wins over what it merges")
	require.Equal(t, "drop", b.Late)
	require.Equal(t, int32(-3), b.Priority)
	require.Equal(t, 1000, c.Limits.QueueRequests)
	require.Equal(t, config.Size(1<<30), c.Limits.QueueBytes)
	require.Equal(t, 0.10, c.Triggers.RateDown, "defaults fill what a section leaves out")
}

func TestLoadWithoutFile(t *testing.T) {
	c, err := config.Load("", func(c *config.Config) {
		c.Driver.Kind = config.DriverEmbedded
		c.Repository = "/models"
	}, nobody)
	require.NoError(t, err)
	require.Equal(t, config.ModeControl, c.Mode)
	require.Equal(t, "/home/u/.local/state/conch", c.State)
	require.Equal(t, "unix:///run/user/1000/conch/admin.sock", c.Listen.Admin)
	require.Equal(t, 4, c.GPUs.Total())
	require.Empty(t, c.Defaults.Discipline, "an operator who says nothing leaves it to the plan")

	root, err := config.Load("", func(c *config.Config) { c.Repository = "/models" }, config.Environment{UID: 0})
	require.NoError(t, err)
	require.Equal(t, "/var/lib/conch", root.State)
	require.Equal(t, "unix:///run/conch/admin.sock", root.Listen.Admin)
	require.True(t, root.GPUs.Auto)
	require.Equal(t, "tritonserver", root.Driver.TritonServer)
}

func TestLoadSaysTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent.yaml")
	_, err := config.Load(path, nil, nobody)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "--config")

	path = filepath.Join(t.TempDir(), "conch.yaml")
	require.NoError(t, os.WriteFile(path, []byte("mode: control\n"), 0o600))
	_, err = config.Load(path, nil, nobody)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "repository: is missing")
}

// TestParseProblems: all problems of a file come at once, each with its line,
// path and what to do.
func TestParseProblems(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []config.Problem
	}{
		{"unknown keys with suggestions", "repositry: /models\nmodels:\n  a: {slo: 1ms, laet: drop}\ndriver: {colour: red}\n", []config.Problem{
			{Path: "repositry", Line: 1, Text: `unknown key "repositry"; did you mean "repository"?`},
			{Path: "models.a.laet", Line: 3, Text: `unknown key "laet"; did you mean "late"?`},
			{Path: "driver.colour", Line: 4, Text: `unknown key "colour"; known are arguments, backendDirectory, endpoints, environment, executions, kind, kubernetes, loadTimeout, orphanGrace, probe, service, sharedMemory, startTimeout, stretch, tls, tritonserver`},
		}},
		{"wrong kinds", "defaults: {slo: 25}\nseed: -1\ngpus: 4\nmodels: [a]\nlimits: {queueBytes: many}\nrepository: [a]\n", []config.Problem{
			{Path: "defaults.slo", Line: 1, Text: `"25" is not a duration; write a number with its unit, as in 25ms or 1.5s`},
			{Path: "seed", Line: 2, Text: `want a whole number from 0, not "-1"`},
			{Path: "gpus", Line: 3, Text: `want auto or a list such as [{type: A100-80GB, count: 4, emulated: true}]`},
			{Path: "models", Line: 4, Text: "want a mapping of keys to values"},
			{Path: "limits.queueBytes", Line: 5, Text: `"many" is not a size; write bytes or a number with its unit, as in 512MiB or 80GB`},
			{Path: "repository", Line: 6, Text: "want a single value"},
		}},
		{"an unknown alias", "models: {a: *nobody}\n", []config.Problem{{Path: "models.a", Line: 1, Text: "alias *nobody has no anchor before it"}}},
		{"two documents", "mode: control\n---\nmode: observe\n", []config.Problem{{Line: 3, Text: "a second document begins here; conch.yaml holds one"}}},
		{"a list", "- mode\n", []config.Problem{{Line: 1, Text: "want a mapping of keys to values"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := config.Parse("conch.yaml", []byte(test.text))
			var invalid *config.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, test.want, invalid.Problems)
			require.Contains(t, err.Error(), "conch.yaml: ")
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"a key set twice":    "mode: control\nmode: observe\n",
		"bad syntax":         "models: {a: [1\n",
		"tabs":               "models:\n\ta: {}\n",
		"an alias of itself": "models: &m {a: *m, <<: *m}\n",
		"aliases that multiply": "policy: {parameters: {a: &a [1,1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], " +
			"c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d], f: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]}}\n",
		"a novel": "# " + strings.Repeat("x", 5<<20),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse("conch.yaml", []byte(text))
			var invalid *config.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Problems)
		})
	}
}

func TestValidateListsEverything(t *testing.T) {
	c, err := config.Parse("conch.yaml", []byte(`
apiVersion: conch/v2
mode: contrl
listen: {grpc: "8001", http: ":9000", metrics: ":9000", admin: "unix://relative"}
driver: {kind: embedded, tritonserver: /bin/true, environment: {CUDA_VISIBLE_DEVICES: "1"}, stretch: -1}
gpus: [{count: 2}]
policy: {checksum: abc, executable: here}
models:
  b: {parameters: {delay: 1ms}, dropPolicy: lots, ensemble: maybe}
  c: {dropPolicy: lots}
  a: {late: never, discipline: lazy, gpus: [gpu7], minInstances: 3, maxInstances: 1, maxThreadPercentage: 130, profile: {}}
triggers: {badRate: 2}
log: {level: loud}
`))
	require.NoError(t, err)
	c.Provision(nobody)
	var invalid *config.InvalidError
	require.True(t, errors.As(c.Validate(nobody), &invalid))
	paths := make([]string, 0, len(invalid.Problems))
	for _, p := range invalid.Problems {
		paths = append(paths, p.Path)
	}
	require.ElementsMatch(t, []string{
		"apiVersion", "mode", "listen.grpc", "listen.metrics", "listen.admin", "repository", "driver.tritonserver",
		"driver.environment", "driver.environment.CUDA_VISIBLE_DEVICES", "driver.stretch", "gpus[0].type", "policy.executable", "policy.checksum",
		"models.b.parameters", "models.b.ensemble", "models.c.dropPolicy", "models.a.late", "models.a.discipline", "models.a.gpus[0]", "models.a.minInstances", "models.a.maxThreadPercentage",
		"models.a.profile", "triggers.badRate", "log.level",
	}, paths)
	require.ErrorContains(t, c.Validate(nobody), `line 3: mode: "contrl" is not known; did you mean "control"?`)
}

func TestTLSKeysBelongTogether(t *testing.T) {
	for text, want := range map[string]string{
		"listen: {tls: {certificate: /c}}":                                                "listen.tls.key: is missing; it is the file of the key of listen.tls.certificate",
		"listen: {tls: {key: /k}}":                                                        "listen.tls.certificate: is missing",
		"listen: {tls: {clientCA: /ca}}":                                                  "listen.tls.clientCA: has no meaning without listen.tls.certificate",
		"listen: {tls: {metrics: true}}":                                                  "listen.tls.metrics: has no meaning without listen.tls.certificate",
		"listen: {tls: {certificate: /c, key: /k, clientCertificates: required}}":         "wants listen.tls.clientCA",
		"listen: {tls: {certificate: /c, key: /k, clientCA: /a, clientCertificates: no}}": `listen.tls.clientCertificates: "no" is not known`,
		"listen: {grpc: 8001}":                                                            `listen.grpc: "8001" is neither host:port nor off; :8001 is port 8001 of every address`,
		`listen: {tls: {certificate: /c, key: /k, minVersion: "1.1"}}`:                    `listen.tls.minVersion: "1.1" is not known`,
		"listen: {reusePort: true, grpc: \":0\"}":                                         "listen.grpc: port 0 is a free one",
		"listen: {admin: \":9000\", adminToken: /t}":                                      "listen.admin: :9000 can be reached by others, and every caller that reaches it decides what serves: set listen.adminTLS.certificate and .key",
		"listen: {admin: \":9000\", adminTLS: {certificate: /c, key: /k}}":                "name the file of a token with listen.adminToken, or make it unix:///path",
		"listen: {admin: \":9000\", adminToken: /t, adminTLS: {certificate: /c}}":         "listen.adminTLS.key: is missing",
		"listen: {adminToken: /t}":                                                        "listen.adminToken: has no meaning for listen.admin unix://",
		`listen: {ui: {address: "127.0.0.1:9"}}`:                                          "listen.ui: lets nobody in",
		`listen: {ui: {address: ":9", token: /t, hosts: [a]}}`:                            "listen.ui.address: :9 can be reached by others",
		`listen: {ui: {address: ":9", token: /t, tls: {certificate: /c, key: /k}}}`:       "listen.ui.hosts: is empty",
		`listen: {ui: {address: "[::1]:9", token: /t, hosts: ["https://a"]}}`:             "is not a name or address",
		`listen: {ui: {address: "localhost:9", token: /t, tls: {clientCA: /c}}}`:          "listen.ui.tls: has no meaning without",
		`listen: {ui: {token: /t}}`:                                                       "listen.ui: has no meaning without listen.ui.address",
		`listen: {ui: {address: ":8001", token: /t}}`:                                     "is the address of listen.grpc too",
		"driver: {tls: {certificate: /c}}":                                                "driver.tls.key: is missing",
		`driver: {tls: {minVersion: "1.3"}}`:                                              "driver.tls.minVersion: has no meaning alone",
		"driver: {kind: embedded, tls: {ca: /ca}}":                                        "driver.tls: has no meaning for the embedded driver",
		"limits: {connections: -1}":                                                       "limits.connections: -1 is less than one",
	} {
		c, err := config.Parse("conch.yaml", []byte("repository: /m\n"+text))
		require.NoError(t, err, text)
		c.Provision(nobody)
		require.ErrorContains(t, c.Validate(nobody), want, text)
	}
	c, err := config.Parse("conch.yaml", []byte("repository: /m\nlisten: {tls: {certificate: /c, key: /k, clientCA: /ca}}\ndriver: {tls: {ca: /ca}}"))
	require.NoError(t, err)
	c.Provision(nobody)
	require.NoError(t, c.Validate(nobody))
	require.Equal(t, config.ServerTLS{Certificate: "/c", Key: "/k", ClientCA: "/ca", ClientCertificates: "required", MinVersion: "1.2"}, c.Listen.TLS)
	require.Equal(t, "1.2", c.Driver.TLS.MinVersion)
}

func TestReloadable(t *testing.T) {
	load := func(text string) *config.Config {
		c, err := config.Parse("conch.yaml", []byte("repository: /m\n"+text))
		require.NoError(t, err)
		c.Provision(nobody)
		require.NoError(t, c.Validate(nobody))
		return c
	}
	running := load("models: {a: {slo: 10ms}}")
	require.NoError(t, config.Reloadable(running, load("# moved down a line\nmodels: {a: {slo: 20ms}}\npolicy: {name: other}\ndefaults: {slo: 1s}\nmode: advise")))
	require.EqualError(t, config.Reloadable(running, load(`listen: {grpc: ":1"}
state: /elsewhere`)), "reload refused, nothing was changed: listen, state cannot change while conch runs; restart it, or put the old values back")
}

func TestSize(t *testing.T) {
	for text, want := range map[string]config.Size{"0": 0, "1KiB": 1024, "1.5 GiB": 3 << 29, "80GB": 80e9, "12": 12, "7B": 7} {
		var s config.Size
		require.NoError(t, s.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, s, text)
	}
	for _, text := range []string{"", "-1", "NaN", "1e300GB", "GB", "9223372036854775808"} {
		var s config.Size
		require.Error(t, s.UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, "3MiB", config.Size(3<<20).String())
	require.Equal(t, "1001", config.Size(1001).String())
}

// TestReloadableIsDocumented: docs/configuration.md names the sections that take effect while conch serves, and no other.
func TestReloadableIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(page), "On SIGHUP conch reads the file again")
	sentence, _, found := strings.Cut(after, "take effect while it serves")
	require.True(t, found)
	for i, field := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		key := field.Tag.Get("yaml")
		if key == "" {
			continue
		}
		var next config.Config
		alter(reflect.ValueOf(&next).Elem().Field(i))
		require.Equal(t, config.Reloadable(&config.Config{}, &next) == nil, strings.Contains(sentence, "`"+key+"`"), key)
	}
}

// alter makes a zero value another one.
func alter(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		alter(v.Field(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

// TestDocumented: docs/configuration.md has a line for every key and for no
// other.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if cell, ok := strings.CutPrefix(line, "| `"); ok {
			key, _, _ := strings.Cut(cell, "`")
			documented[key] = true
		}
	}
	known := map[string]bool{}
	var walk func(prefix string, t reflect.Type)
	walk = func(prefix string, kind reflect.Type) {
		for i := range kind.NumField() {
			field := kind.Field(i)
			key := field.Tag.Get("yaml")
			if key == "" {
				continue
			}
			path, inner := prefix+key, field.Type
			switch {
			case inner == reflect.TypeFor[config.GPUs]():
				path, inner = path+"[]", reflect.TypeFor[config.GPU]()
				known[prefix+key] = true
			case inner == reflect.TypeFor[config.Merge]():
				path, inner = path+"[]", reflect.TypeFor[config.MergeGroup]()
				known[prefix+key] = true
			case inner.Kind() == reflect.Map && inner.Elem().Kind() == reflect.Struct:
				path, inner = path+".NAME", inner.Elem()
			case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
				path, inner = path+"[]", inner.Elem()
			case inner.Kind() == reflect.Pointer:
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				walk(path+".", inner)
				continue
			}
			known[path] = true
		}
	}
	walk("", reflect.TypeFor[config.Config]())
	for key := range known {
		require.True(t, documented[key], "docs/configuration.md has no line for %s", key)
	}
	for key := range documented {
		require.True(t, known[key], "docs/configuration.md documents %s, which is no key", key)
	}
}

// FuzzParse: no text makes the decoder panic or loop, and what it accepts can
// be provisioned and judged.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	require.NoError(f, err)
	f.Add(full)
	f.Add([]byte("a: &a {b: *a}\nmodels: {<<: *a}"))
	f.Add([]byte("policy: {parameters: {x: [1, {y: !!str 2}, null, .inf]}}"))
	f.Add([]byte("? [complex]\n: key"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := config.Parse("fuzz.yaml", text)
		if err != nil {
			if !strings.Contains(err.Error(), "fuzz.yaml") {
				t.Fatalf("error without the file's name: %v", err)
			}
			return
		}
		c.Provision(nobody)
		if err := c.Validate(nobody); err != nil {
			var invalid *config.InvalidError
			if !errors.As(err, &invalid) || len(invalid.Problems) == 0 {
				t.Fatalf("not a list of problems: %v", err)
			}
		}
	})
}

func TestMerge(t *testing.T) {
	c, err := config.Parse("conch.yaml", []byte("merge: auto"))
	require.NoError(t, err)
	require.True(t, c.Merge.Auto)
	c, err = config.Parse("conch.yaml", []byte("merge: [{members: [a, b]}, {members: [c, a], mode: superop}, {members: [d]}]"))
	require.NoError(t, err)
	c.Provision(config.Environment{Getenv: func(string) string { return "" }})
	require.Equal(t, config.MergeGroup{Members: []string{"a", "b"}, Mode: "backbone"}, c.Merge.List[0])
	err = c.Validate(config.Environment{Getenv: func(string) string { return "" }})
	require.ErrorContains(t, err, "a is in merge[0] already")
	require.ErrorContains(t, err, "superop is made and measured by tritonctl merge, and cannot be served")
	require.ErrorContains(t, err, "names 1 models")
	_, err = config.Parse("conch.yaml", []byte("merge: some"))
	require.ErrorContains(t, err, "want auto or a list such as [{members: [a, b], mode: backbone}]")
}
