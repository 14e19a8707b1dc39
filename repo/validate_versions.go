// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// numbered is what Triton takes of a directory's name for a version: it reads a
// number at the front, whatever follows.
var numbered = regexp.MustCompile(`^[ \t\n\v\f\r]*([+-]?[0-9]+)`)

// versionDirectories are the directories of a model that Triton takes for
// versions.
type versionDirectories struct {
	// plain are the directories whose names are numbers.
	plain []int64
	// other are the names that count as a version, and are no plain number.
	other map[int64]string
	// large are the names whose number Triton cannot hold.
	large []string
}

// numbers are the versions that there are.
func (d versionDirectories) numbers() []int64 { return d.plain }

// versionsIn looks at the directories of a model.
func versionsIn(fsys fs.FS, model string) versionDirectories {
	entries, err := fs.ReadDir(fsys, model)
	if err != nil {
		return versionDirectories{}
	}
	var names []string
	for _, e := range entries {
		if info, err := fs.Stat(fsys, path.Join(model, e.Name())); err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	return versionNames(names)
}

// versionNames sorts out the names of a model's directories.
func versionNames(names []string) versionDirectories {
	d := versionDirectories{other: map[int64]string{}}
	for _, name := range names {
		match := numbered.FindStringSubmatch(name)
		if match == nil || len(name) > 1 && name[0] == '0' {
			continue
		}
		n, err := strconv.ParseInt(match[1], 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			d.large = append(d.large, name)
		case strconv.FormatInt(n, 10) == name && n >= 0:
			d.plain = append(d.plain, n)
		default:
			d.other[n] = name
		}
	}
	slices.Sort(d.plain)
	slices.Sort(d.large)
	for _, n := range d.plain {
		delete(d.other, n) // the directory of that name is found
	}
	return d
}

// all are the versions that Triton believes there are, ascending.
func (d versionDirectories) all() []int64 {
	all := slices.Clone(d.plain)
	for n := range d.other {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// versions looks for the files that the served versions need. A version
// directory of the python backend without its file makes Triton's load hang for
// ever.
func (v *validator) versions(c *tritonpb.ModelConfig) {
	refuse := func(directory, format string, args ...any) {
		v.problems = append(v.problems, Problem{Severity: SeverityError, File: path.Join(v.model, directory), Text: fmt.Sprintf(format, args...)})
	}
	entries, err := fs.ReadDir(v.files, v.model)
	if err != nil {
		refuse("", "%s", reason(err))
		return
	}
	for _, e := range entries {
		if _, err := fs.Stat(v.files, path.Join(v.model, e.Name())); errors.Is(err, modeldir.ErrOutside) && numbered.MatchString(e.Name()) {
			refuse(e.Name(), "%s", reason(err))
			return
		}
	}
	found := versionsIn(v.files, v.model)
	for _, name := range found.large {
		refuse(name, "the number at the front of the name is too large for a version; a Triton that is asked to load the model ends: rename the directory")
	}
	if len(found.large) > 0 {
		return
	}
	served := ServedVersions(c, found.all())
	if len(served) == 0 {
		before := len(v.problems)
		switch policy := c.GetVersionPolicy(); {
		case len(found.all()) == 0:
			refuse("", "no version directory; make one named by a number, such as 1")
		case policy.GetLatest() != nil:
			v.refuse(v.line("version_policy"), "version_policy asks for the latest 0 versions; say num_versions: 1 or more")
		default:
			v.refuse(v.line("version_policy"), "version_policy asks for %v, and there is no such directory", policy.GetSpecific().GetVersions())
		}
		for i := range v.problems[before:] {
			v.problems[before+i].NoVersion = true
		}
		return
	}
	file, required := modelFile(c)
	for _, version := range served {
		directory := strconv.FormatInt(version, 10)
		if name, ok := found.other[version]; ok && version < 0 {
			refuse(name, "Triton takes the number at the front of the name for version %d, and no version is below 0: rename it", version)
			continue
		} else if ok {
			refuse(name, "Triton takes the number at the front of the name for version %d, which it then looks for in the directory %s: rename it, to old-%s for instance", version, directory, strings.TrimSpace(name))
			continue
		}
		if !required || v.emulated && runsInMinitriton(c) {
			continue
		}
		switch info, err := fs.Stat(v.files, path.Join(v.model, directory, file)); {
		case errors.Is(err, modeldir.ErrOutside):
			refuse(path.Join(directory, file), "%s", reason(err))
		case err != nil && c.GetBackend() == "python":
			refuse(directory, "%s is missing; Triton would never finish loading the model", file)
		case err != nil:
			refuse(directory, "%s is missing", file)
		case info.IsDir() && c.GetBackend() == "python":
			refuse(path.Join(directory, file), "is a directory, and has to be a file of Python")
		case !info.IsDir() && !info.Mode().IsRegular():
			refuse(path.Join(directory, file), "is neither a file nor a directory")
		}
	}
}

// runsInMinitriton reports that minitriton serves the model by its parameters
// alone.
func runsInMinitriton(c *tritonpb.ModelConfig) bool {
	for name := range c.GetParameters() {
		if name == "conch_builtin" || name == "conch_emulate_beta_us" {
			return true
		}
	}
	return false
}

// modelFile is the file or directory that a version of the model must hold, by
// the defaults of Triton's backends (model configuration, "Platform"). Backends
// that we do not know may need none.
func modelFile(c *tritonpb.ModelConfig) (name string, required bool) {
	defaults := defaultFiles()
	name, required = defaults[c.GetBackend()]
	if !required {
		name, required = defaults[c.GetPlatform()]
	}
	if required && c.GetDefaultModelFilename() != "" {
		name = c.GetDefaultModelFilename()
	}
	// An ahead-of-time runtime or per-device files: several names are possible.
	if len(c.GetCcModelFilenames()) > 0 || c.GetRuntime() != "" {
		required = false
	}
	return name, required
}

// defaultFiles are the names of model files by backend or platform.
func defaultFiles() map[string]string {
	return map[string]string{
		"python": "model.py", "onnxruntime": "model.onnx", "tensorrt": "model.plan", "pytorch": "model.pt", "openvino": "model.xml",
		"onnxruntime_onnx": "model.onnx", "tensorrt_plan": "model.plan", "pytorch_libtorch": "model.pt",
		"tensorflow_savedmodel": "model.savedmodel", "tensorflow_graphdef": "model.graphdef",
	}
}

// guessedBackend is the key of defaultFiles by whose file in a version Triton
// knows the backend; empty where there is none.
func (v *validator) guessedBackend() string {
	for backend, name := range defaultFiles() {
		if found, err := fs.Glob(v.files, path.Join(escaped(v.model), "[0-9]*", name)); err == nil && len(found) > 0 {
			return backend
		}
	}
	return ""
}

// escaped is a name in which a pattern of files means nothing special.
func escaped(name string) string {
	return regexp.MustCompile(`[\\*?\[]`).ReplaceAllString(name, `\$0`)
}
