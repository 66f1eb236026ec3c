// Shows panels with Grafana's own @grafana/data: transformations, overrides, units and names.
//
//   node show_panels.cjs <input >output
//
// Input: a JSON list of {panel, frames}; a frame is a list of fields. Output: for
// each panel its fields, and the names of overrides that match none.
// Editors and what needs a page are left out.
const { JSDOM } = require('jsdom');
const { window } = new JSDOM('', { url: 'http://localhost/' });
window.matchMedia = () => ({ matches: false, addEventListener() {}, removeEventListener() {} });
for (const name of ['window', 'document', 'navigator', 'localStorage', 'Element', 'HTMLElement', 'Node']) {
  const value = name === 'window' ? window : window[name];
  Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
}
const grafana = require('@grafana/data');
const { firstValueFrom } = require('rxjs');

// Some transformations are there twice, under another name.
const transformations = new Map(Object.values(grafana.standardTransformers).map((each) => [each.id, each]));
grafana.standardTransformersRegistry.setInit(() =>
  [...transformations].map(([id, transformation]) => ({ id, name: transformation.name, transformation: async () => transformation })));

const processors = {
  displayName: grafana.displayNameOverrideProcessor, unit: grafana.unitOverrideProcessor,
  decimals: grafana.numberOverrideProcessor, min: grafana.numberOverrideProcessor,
  max: grafana.numberOverrideProcessor, noValue: grafana.stringOverrideProcessor,
  links: grafana.dataLinksOverrideProcessor, thresholds: grafana.thresholdsOverrideProcessor,
  mappings: grafana.valueMappingsOverrideProcessor, color: grafana.identityOverrideProcessor,
};
const registry = new grafana.FieldConfigOptionsRegistry(() => [
  ...Object.entries(processors).map(([id, process]) => ({ id, path: id, name: id, process, shouldApply: () => true })),
  ...['hidden', 'cellOptions'].map((id) => ({
    id: `custom.${id}`, path: id, name: id, isCustom: true, process: grafana.identityOverrideProcessor,
    shouldApply: () => true,
  })),
]);
const units = new Set(grafana.getValueFormats().flatMap((group) => group.submenu.map((unit) => unit.value)));

async function show({ panel, frames }) {
  const theme = grafana.createTheme();
  const known = (panel.transformations ?? []).filter(({ id }) => id !== 'prepareTimeSeries'); // in Grafana's core
  const sources = frames.map((fields) => grafana.toDataFrame({ fields }));
  const transformed = await firstValueFrom(grafana.transformDataFrame(known, sources));
  const matched = new Set();
  panel.fieldConfig.overrides.forEach(({ matcher }, index) => {
    const matches = grafana.fieldMatchers.get(matcher.id).get(matcher.options);
    for (const frame of transformed) {
      if (frame.fields.some((field) => matches(field, frame, transformed))) matched.add(index);
    }
  });
  const shown = grafana.applyFieldOverrides({
    data: transformed, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry, theme, timeZone: 'utc',
    replaceVariables: (text) => text,
  });
  return {
    unmatched: panel.fieldConfig.overrides.filter((_, index) => !matched.has(index)).map(({ matcher }) => matcher.options),
    fields: shown.flatMap((frame) => frame.fields.map((field) => ({
      name: grafana.getFieldDisplayName(field, frame, shown),
      hidden: field.config.custom?.hidden === true,
      unit: !field.config.unit || units.has(field.config.unit),
      texts: [...field.values].slice(0, 5).map((value) => grafana.formattedValueToString(field.display(value))),
    }))),
  };
}

Promise.all(JSON.parse(require('fs').readFileSync(0, 'utf8')).map(show))
  .then((panels) => console.log(JSON.stringify(panels)));
