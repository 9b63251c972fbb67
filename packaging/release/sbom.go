package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A component is part of an SBOM in CycloneDX 1.6.
type component struct {
	Type    string      `json:"type"`
	Name    string      `json:"name"`
	Version string      `json:"version"`
	URL     string      `json:"purl,omitempty"`
	Hashes  []hash      `json:"hashes,omitempty"`
	Parts   []component `json:"components,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// sbom lists the programs' modules, from their build information.
func (r *release) sbom(t target, built []file) error {
	var list []component
	for _, f := range built {
		info, err := buildinfo.Read(bytes.NewReader(f.data))
		if err != nil {
			return err
		}
		modules := map[string]component{"std": {Type: "library", Name: "std", Version: info.GoVersion, URL: "pkg:golang/std@" + info.GoVersion[len("go"):]}}
		for _, m := range info.Deps {
			if m.Replace != nil && !strings.HasPrefix(m.Replace.Path, "./"+changedFolder) {
				m = m.Replace
			}
			modules[m.Path] = component{Type: "library", Name: m.Path, Version: m.Version, URL: fmt.Sprintf("pkg:golang/%s@%s", m.Path, m.Version)}
		}
		program := component{Type: "application", Name: f.name, Version: r.version}
		sum := sha256.Sum256(f.data)
		program.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
		for _, name := range slices.Sorted(maps.Keys(modules)) {
			program.Parts = append(program.Parts, modules[name])
		}
		list = append(list, program)
	}
	data, err := json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": list,
		"metadata": map[string]any{"timestamp": r.when.Format("2006-01-02T15:04:05Z"), "component": component{Type: "application", Name: "ahp-relay", Version: r.version}},
	}, "", " ")
	if err != nil {
		return err
	}
	return r.write(r.name("ahp-relay", t)+".cdx.json", append(data, '\n'))
}
