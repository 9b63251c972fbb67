package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// chart packs the Helm chart.
func (r *release) chart() error {
	files, err := read(filepath.Join(r.root, "packaging", "helm", "ahp-relay"))
	if err != nil {
		return err
	}
	for i, f := range files {
		switch f.name {
		case "Chart.yaml":
			files[i].data = replaceLine(f.data, "version: ", "version: "+r.version)
			files[i].data = replaceLine(files[i].data, "appVersion: ", fmt.Sprintf("appVersion: %q", r.version))
		case "values.yaml":
			files[i].data = replaceLine(f.data, "  repository: ", "  repository: "+r.owner["IMAGES"]+"/ahp-relay")
		}
	}
	return r.writeTarGz(fmt.Sprintf("ahp-relay-chart-%s.tgz", r.version), "ahp-relay/", files)
}

// replaceLine replaces the lines that begin with prefix.
func replaceLine(text []byte, prefix, with string) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, prefix) {
			lines[i] = with
		}
	}
	return []byte(strings.Join(lines, "\n"))
}
