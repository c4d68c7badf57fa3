// How long a measured span has to be before its clock can be believed.

import { state } from './device.js';

const LEAST_US = 1000;
const LEAST_WALL_US = 20000;
const QUANTA = 100;

/** @param {boolean} byTimestamps @returns {number} microseconds */
export function targetUs(byTimestamps) {
  return byTimestamps ? Math.max(LEAST_US, QUANTA * state.quantumNs / 1000) : LEAST_WALL_US;
}
