package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A composed is the definition of a service in the compose files.
type composed struct {
	Container   string `yaml:"container_name"`
	Ports       []string
	Environment map[string]string
	Secrets     []string
	Volumes     []string
	Networks    []string
	Tmpfs       []string
}

// compose reads compose files and returns their services. A later file adds to the
// files before it. The values of variables replace their names.
func compose(variables map[string]string, files ...string) (map[string]composed, error) {
	services := map[string]composed{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var read struct{ Services map[string]composed }
		if err := yaml.Unmarshal([]byte(expand(string(text), variables)), &read); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for name, more := range read.Services {
			s := services[name]
			if s.Environment == nil {
				s.Environment = map[string]string{}
			}
			maps.Copy(s.Environment, more.Environment)
			if more.Container != "" {
				s.Container = more.Container
			}
			s.Ports, s.Secrets = append(s.Ports, more.Ports...), append(s.Secrets, more.Secrets...)
			s.Volumes, s.Networks = append(s.Volumes, more.Volumes...), append(s.Networks, more.Networks...)
			s.Tmpfs = append(s.Tmpfs, more.Tmpfs...)
			services[name] = s
		}
	}
	return services, nil
}

// expand replaces ${NAME}, ${NAME:-default} and ${NAME:?error} by values, the innermost
// first.
func expand(text string, variables map[string]string) string {
	for {
		end, start := -1, strings.LastIndex(text, "${")
		if start >= 0 {
			end = strings.Index(text[start:], "}")
		}
		if end < 0 {
			return text
		}
		name, otherwise, _ := strings.Cut(text[start+2:start+end], ":")
		value, given := variables[name]
		if !given {
			value = strings.TrimLeft(otherwise, "-?")
		}
		text = text[:start] + value + text[start+end+1:]
	}
}

// flags returns podman's flags for a service. Only the images' user can read secrets.
// Options must stand before volumes.
func (c composed) flags() (args []string) {
	if c.Container != "" {
		args = append(args, "--hostname", c.Container)
	}
	var networks []string
	for _, n := range c.Networks {
		networks = append(networks, "ahp-"+n)
	}
	args = append(args, "--network", strings.Join(networks, ","))
	for _, p := range c.Ports {
		args = append(args, "--publish", p)
	}
	for _, v := range c.Volumes {
		args = append(args, "--volume", v)
	}
	for _, t := range c.Tmpfs {
		args = append(args, "--tmpfs", t)
	}
	for _, s := range c.Secrets {
		args = append(args, "--secret", s+",uid=65532,mode=0400")
	}
	if len(c.Secrets) > 0 {
		args = append(args, "--read-only=false") // podman 4.3 mounts a secret at a place that is not there, which Docker makes before it locks the rest
	}
	for _, name := range slices.Sorted(maps.Keys(c.Environment)) {
		args = append(args, "--env", name+"="+c.Environment[name])
	}
	return args
}
