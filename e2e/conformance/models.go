// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// models holds one directory per model with its config.pbtxt, and one python file per conch_builtin.
//
//go:embed models
var models embed.FS

var builtinParameter = regexp.MustCompile(`key: "conch_builtin" value \{ string_value: "([a-z_]+)" \}`)

// ModelNames lists the models of the suite.
func ModelNames() ([]string, error) {
	dirs, err := fs.ReadDir(models, "models")
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	var names []string
	for _, d := range dirs {
		if d.Name() != "python" {
			names = append(names, d.Name())
		}
	}
	return names, nil
}

// WriteModels writes the suite's models into a repository directory. They run in Triton's python backend (numpy below 2) and, by their
// conch_builtin parameter, in minitriton. An ensemble has no code of its own.
func WriteModels(dir string) error {
	names, err := ModelNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := writeModel(dir, name); err != nil {
			return fmt.Errorf("conformance: model %q: %w", name, err)
		}
	}
	return nil
}

// Gates is the directory, beside a repository that WriteModels has written, of the gates of models that have one (parameter conch_gate): see
// Env.close.
func Gates(repository string) string { return filepath.Clean(repository) + ".gates" }

// versionsOf says how many versions of a model are on disk: 1 to the last.
func versionsOf(model string) int {
	if strings.HasPrefix(model, "versions_") {
		return 3
	}
	return 1
}

// python is the code of a built-in model for Triton's python backend.
func python(builtin string) ([]byte, error) {
	return models.ReadFile("models/python/" + builtin + ".py")
}

func writeModel(dir, name string) error {
	files, err := fs.ReadDir(models, "models/"+name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		return err
	}
	var py []byte
	for _, f := range files {
		content, err := models.ReadFile("models/" + name + "/" + f.Name())
		if err != nil {
			return err
		}
		if m := builtinParameter.FindSubmatch(content); f.Name() == "config.pbtxt" && m != nil {
			if py, err = python(string(m[1])); err != nil {
				return err
			}
		}
		content = bytes.Replace(content, []byte(`"GATE"`), []byte(strconv.Quote(filepath.Join(Gates(dir), name))), 1)
		if err := os.WriteFile(filepath.Join(dir, name, f.Name()), content, 0o644); err != nil {
			return err
		}
	}
	for v := range versionsOf(name) {
		if err := writeVersion(filepath.Join(dir, name, strconv.Itoa(v+1)), py); err != nil {
			return err
		}
	}
	return nil
}

// writeVersion writes a version directory. Without python it stays empty.
func writeVersion(dir string, py []byte) error {
	err := os.MkdirAll(dir, 0o755)
	if err == nil && py != nil {
		err = os.WriteFile(filepath.Join(dir, "model.py"), py, 0o644)
	}
	return err
}
