// Package procgroup ends a program together with its children, on systems with process
// groups.
package procgroup
